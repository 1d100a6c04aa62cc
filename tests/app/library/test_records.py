"""Names of models from their files: stable, unique, safe in a URL."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.records import assign_ids, capabilities, file_stem, repository
from engines.artifact.facts import ModelKind
from tests.fixtures.facts import facts


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m"),
        ("Llama-3.2-1B.Q8_0.GGUF", "Llama-3.2-1B.Q8_0"),
        ("Big-00001-of-00003.gguf", "Big"),
        ("Big-0001-of-0003.gguf", "Big-0001-of-0003"),
        ("Qwen2.5-7B", "Qwen2.5-7B"),
        ("hub/models--org--Qwen3-0.6B-4bit/snapshots/0a1b", "Qwen3-0.6B-4bit"),
        ("hub/models--gpt2/snapshots/0a1b", "gpt2"),
        ("other/snapshots/0a1b", "0a1b"),
        (".gguf", ".gguf"),
    ],
)
def test_a_stem_is_the_name_without_ending_and_part(name: str, stem: str) -> None:
    assert file_stem(PurePosixPath("/models") / name) == stem


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/models/gemma.gguf", None),
        ("/models/org/gemma.gguf", None),
        ("/models/org/name/gemma.gguf", "org/name"),
        ("/models/org/name/Q4_K_M/gemma-00001-of-00002.gguf", "org/name"),
        ("/models/my models/name/gemma.gguf", None),
        ("/models/.cache/name/gemma.gguf", None),
        ("/elsewhere/org/name/gemma.gguf", None),
        ("/models/hub/models--org--name-GGUF/snapshots/0a1b/gemma.gguf", "org/name-GGUF"),
        ("/other/models--org--name/snapshots/0a1b/gemma.gguf", "org/name"),
        ("/models/hub/models--gpt2/snapshots/0a1b/gpt2.gguf", "gpt2"),
    ],
)
def test_a_repository_is_seen_in_the_folders(path: str, found: str | None) -> None:
    assert repository(PurePosixPath(path), PurePosixPath("/models")) == found
    windows = PureWindowsPath("C:" + path.replace("/", "\\"))
    assert repository(windows, PureWindowsPath("C:\\models")) == found


@pytest.mark.parametrize(
    ("kind", "template", "modalities", "found"),
    [
        (ModelKind.CHAT, None, (), ("chat",)),
        (ModelKind.CHAT, "{% if tools %}...", (), ("chat", "tools")),
        (ModelKind.CHAT, "{{ toolshed }}", (), ("chat",)),
        (ModelKind.CHAT, None, ("image",), ("chat", "vision")),
        (ModelKind.CHAT, "{{tools}}", ("audio", "image"), ("chat", "vision", "tools")),
        (ModelKind.CHAT, None, ("audio",), ("chat",)),
        (ModelKind.EMBEDDING, "{{tools}}", (), ("embedding",)),
        (ModelKind.RERANK, None, (), ("rerank",)),
    ],
)
def test_capabilities_come_from_the_header(
    kind: ModelKind, template: str | None, modalities: tuple[str, ...], found: tuple[str, ...]
) -> None:
    assert capabilities(facts(kind=kind, chat_template=template, modalities=modalities)) == found


@pytest.mark.parametrize(
    ("stem", "model"),
    [
        ("gemma-3-270m-q4_k_m", "gemma-3-270m-q4_k_m"),
        ("Llama 3 (8B)", "Llama-3-8B"),
        ("naïve/modèle", "na-ve-mod-le"),
        ("модель", "model"),
        (".hidden", "hidden"),
        ("a?b#c%d", "a-b-c-d"),
    ],
)
def test_an_id_is_safe_in_a_url(stem: str, model: str) -> None:
    assert assign_ids({Path("/m/x.gguf"): stem}, {}) == {Path("/m/x.gguf"): model}


def test_the_second_of_a_name_gets_a_suffix_from_its_path() -> None:
    stems = {Path("/b/x.gguf"): "X", Path("/a/x.gguf"): "x", Path("/c/auto.gguf"): "Auto"}
    found = assign_ids(stems, {})
    assert found[Path("/a/x.gguf")] == "x"
    assert re.fullmatch(r"X-[0-9a-f]{8}", found[Path("/b/x.gguf")])
    assert re.fullmatch(r"Auto-[0-9a-f]{8}", found[Path("/c/auto.gguf")])
    assert assign_ids(dict(reversed(stems.items())), {}) == found


def test_a_model_keeps_its_id_when_another_of_its_name_comes_before_it() -> None:
    late, early = Path("/b/x.gguf"), Path("/a/x.gguf")
    first = assign_ids({late: "x"}, {})
    both = assign_ids({late: "x", early: "x"}, first)
    assert both[late] == "x"
    assert both[early].startswith("x-")
    assert assign_ids({early: "x"}, both) == {early: both[early]}


@given(
    st.dictionaries(st.text(min_size=1, max_size=6).map(Path), st.sampled_from(["a", "A", "a!", "", "auto", "ü", "b"])),
    st.data(),
)
def test_ids_are_unique_safe_and_stay(stems: dict[Path, str], data: st.DataObject) -> None:
    before = {path: stem for path, stem in stems.items() if data.draw(st.booleans())}
    former = assign_ids(before, {})
    found = assign_ids(stems, former)
    assert found.keys() == stems.keys()
    assert len({model.casefold() for model in found.values()}) == len(found)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", model) for model in found.values())
    assert "auto" not in found.values()
    assert {path: found[path] for path in former} == former
