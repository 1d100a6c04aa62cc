"""Which model a request means."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.names import ModelBroken, ModelNotFound, resolve
from app.library.records import ModelRecord
from engines.artifact.facts import ModelKind
from tests.app.library.examples import record

REASON = "The file is cut short: download it again."
QWEN = record("qwen", name="Qwen3 4B", stem="Qwen3-4B-Q4_K_M", aliases=("Coder", "gpt-4o"), repository="org/qwen")
GEMMA = record("gemma", name="Gemma 3", stem="gemma-3-270m", aliases=("small",), repository="org/gemma")
EMBED = record("embed", kind=ModelKind.EMBEDDING, name="Qwen3 Embedding", aliases=("text-embedding-3-small",))
CUT = record("cut", broken=REASON, aliases=("short",))
OFF = record("off", enabled=False, aliases=("quiet",))
ALL = (QWEN, GEMMA, EMBED, CUT, OFF)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("qwen", "qwen"),
        ("Coder", "qwen"),
        ("cODER", "qwen"),
        ("GPT-4o", "qwen"),
        ("Qwen3 4B", "qwen"),
        ("Qwen3-4B-Q4_K_M", "qwen"),
        ("org/qwen", "qwen"),
        (" small ", "gemma"),
        ("text-embedding-3-small", "embed"),
    ],
)
def test_every_kind_of_name_finds_its_model(name: str, model: str) -> None:
    assert resolve(name, ALL, loaded=(), default=None).id == model


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ([{"id": True}, {"aliases": ("x",)}], 0),
        ([{"aliases": ("X",)}, {"name": "x"}], 0),
        ([{"name": "x"}, {"stem": "x"}], 0),
        ([{"stem": "x"}, {"repository": "x"}], 0),
        ([{"repository": "x"}, {"name": "x"}], 1),
    ],
)
def test_the_first_kind_of_name_that_matches_wins(fields: list[dict[str, Any]], first: int) -> None:
    records = [
        record("x" if kind.pop("id", False) else f"other{number}", **kind)
        for number, kind in enumerate(dict(kind) for kind in fields)
    ]
    assert resolve("x", records, loaded=(records[1 - first].id,), default=None) is records[first]


def test_a_name_is_not_found_in_another_case_unless_it_is_an_alias() -> None:
    for name in ("QWEN", "qwen3 4b", "ORG/QWEN"):
        with pytest.raises(ModelNotFound) as caught:
            resolve(name, ALL, loaded=(), default=None)
        assert caught.value.close[0] == "qwen"


QUANTS = (
    record("big", quant="F32", size=9000, repository="org/m"),
    record("odd", quant="IQ2_M", size=1500, repository="org/m"),
    record("tiny", quant="Q2_K", size=1000, repository="org/m"),
    record("f16", quant="F16", size=8000, repository="org/m"),
    record("q8", quant="Q8_0", size=4000, repository="org/m"),
    record("q5", quant="Q5_K_M", size=3000, repository="org/m"),
    record("q40", quant="Q4_0", size=2000, repository="org/m"),
    record("q4", quant="Q4_K_M", size=2500, repository="org/m"),
)


@pytest.mark.parametrize(
    ("have", "loaded", "model"),
    [
        (("big", "odd", "tiny", "f16", "q8", "q5", "q40", "q4"), (), "q4"),
        (("big", "odd", "tiny", "f16", "q8", "q5", "q40"), (), "q40"),
        (("big", "odd", "tiny", "f16", "q8", "q5"), (), "q5"),
        (("big", "odd", "tiny", "f16", "q8"), (), "q8"),
        (("big", "odd", "tiny", "f16"), (), "f16"),
        (("big", "odd", "tiny"), (), "tiny"),
        (("big", "odd"), (), "odd"),
        (("big", "q4"), ("big",), "big"),
        (("big", "odd", "q4"), ("other", "odd", "big"), "odd"),
    ],
)
def test_of_a_repository_the_loaded_one_then_the_best_quantisation(
    have: tuple[str, ...], loaded: tuple[str, ...], model: str
) -> None:
    records = [entry for entry in QUANTS if entry.id in have]
    assert resolve("org/m", records, loaded=loaded, default=None).id == model
    assert resolve("org/m", records[::-1], loaded=loaded, default=None).id == model


def test_a_whole_file_of_a_repository_goes_before_a_broken_one() -> None:
    records = (record("cut", broken=REASON, size=1, repository="org/m"), QUANTS[0])
    assert resolve("org/m", records, loaded=("cut",), default=None).id == "big"


@pytest.mark.parametrize("name", [None, "", "  ", "auto", "Auto"])
@pytest.mark.parametrize(
    ("loaded", "default", "model"),
    [
        ((), None, "gemma"),
        ((), "qwen", "qwen"),
        ((), "coder", "qwen"),
        (("gemma",), "qwen", "gemma"),
        (("qwen", "gemma"), None, "qwen"),
        (("embed",), None, "gemma"),
        (("embed", "qwen"), None, "qwen"),
        (("gone",), None, "gemma"),
    ],
)
def test_auto_is_the_loaded_chat_model_then_the_default_then_the_first(
    name: str | None, loaded: tuple[str, ...], default: str | None, model: str
) -> None:
    assert resolve(name, ALL, loaded=loaded, default=default).id == model


def test_an_alias_may_be_called_auto() -> None:
    assert resolve("auto", (GEMMA, record("z", aliases=("Auto",))), loaded=("gemma",), default=None).id == "z"


def test_auto_without_a_chat_model_says_what_to_do() -> None:
    with pytest.raises(ModelNotFound, match="Download one") as caught:
        resolve(None, (EMBED, CUT, OFF), loaded=(), default=None)
    assert caught.value.close == ()


@pytest.mark.parametrize(("default", "error"), [("gone", ModelNotFound), ("cut", ModelBroken)])
def test_a_default_that_can_not_be_had_is_said(default: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=default):
        resolve(None, ALL, loaded=(), default=default)
    assert resolve(None, ALL, loaded=("qwen",), default=default).id == "qwen"


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("qwn", ("qwen",)),
        ("gemma-3-27b", ("gemma",)),
        ("codr", ("qwen",)),
        ("Qwen3", ("qwen", "embed")),
        ("nothing like it", ()),
    ],
)
def test_an_unknown_name_is_told_close_ones(name: str, close: tuple[str, ...]) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(name, ALL, loaded=(), default=None)
    error = caught.value
    assert (error.code, error.name, error.close) == ("model_not_found", name, close)
    assert f'"{name}"' in error.sentence
    assert all(model in error.sentence for model in close)


@pytest.mark.parametrize("name", ["cut", "SHORT"])
def test_a_broken_model_asked_by_name_gives_its_reason(name: str) -> None:
    with pytest.raises(ModelBroken) as caught:
        resolve(name, ALL, loaded=(), default=None)
    assert (caught.value.code, caught.value.model) == ("model_broken", "cut")
    assert REASON in caught.value.sentence


@pytest.mark.parametrize("name", ["off", "quiet"])
def test_a_disabled_model_is_not_there_and_not_suggested(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(name, ALL, loaded=("off",), default=None)
    assert "off" not in caught.value.close


def test_an_endless_name_makes_a_short_error() -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve("q" * 1_000_000, ALL, loaded=(), default=None)
    assert len(caught.value.sentence) < 400


@given(st.one_of(st.text(max_size=30), st.sampled_from(["auto", "org/m"])), st.permutations(ALL + QUANTS))
def test_any_name_gives_a_model_or_one_of_two_errors(name: str, records: list[ModelRecord]) -> None:
    try:
        found = resolve(name, records, loaded=(), default=None)
    except (ModelNotFound, ModelBroken):
        return
    assert found.enabled
    assert found.broken is None
    assert found == resolve(name, ALL + QUANTS, loaded=(), default=None)
