"""Which files of a folder are one model, and which model is taken."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.artifact.errors import ModelMissing, UnreadableModel
from engines.artifact.picker import Group, Part, beside, choose, families, group, is_model, part_of, parts_of, pick
from tests.engines.artifact.measured import failure_of

GIB = 1024**3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model-00001-of-00003.gguf", Part("model", 1, 3, ".gguf")),
        ("a-00001-of-00002-00002-of-00003.GGUF", Part("a-00001-of-00002", 2, 3, ".GGUF")),
        ("model-99999-of-99999.gguf", Part("model", 99_999, 99_999, ".gguf")),
        ("model-00001-of-00001.gguf", Part("model", 1, 1, ".gguf")),
        ("model-00000-of-00003.gguf", None),
        ("model-00004-of-00003.gguf", None),
        ("model-1-of-3.gguf", None),
        ("model-00001-of-00003.bin", None),
        ("-00001-of-00003.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_name_of_a_part_says_which(name: str, expected: Part | None) -> None:
    found = part_of(name)

    assert found == expected
    assert found is None or found.name(found.number) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.gguf", True),
        ("MODEL.GGUF", True),
        ("model.gguf.part", False),
        ("model.safetensors", False),
        ("mmproj-model-f16.gguf", False),
        ("Qwen-MMProj.gguf", False),
        ("._model.gguf", False),
        (".model.gguf", False),
        (".gguf", False),
    ],
)
def test_the_name_of_a_model(name: str, expected: bool) -> None:
    assert is_model(name) is expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"readme.md": 1, "mmproj-f16.gguf": 1}, None),
        (
            {"a-Q4_K_M.gguf": 9, "a-Q4_0.gguf": 1, "a-Q5_K_M.gguf": 1, "a-Q8_0.gguf": 1, "a-f16.gguf": 1},
            "a-Q4_K_M.gguf",
        ),
        ({"a-Q4_0.gguf": 9, "a-Q5_K_M.gguf": 1, "a-Q8_0.gguf": 1, "a-f16.gguf": 1}, "a-Q4_0.gguf"),
        ({"a-Q5_K_M.gguf": 9, "a-Q8_0.gguf": 1, "a-f16.gguf": 1}, "a-Q5_K_M.gguf"),
        ({"a-Q8_0.gguf": 9, "a-f16.gguf": 1}, "a-Q8_0.gguf"),
        ({"a-f16.gguf": 9, "a-Q2_K.gguf": 1}, "a-f16.gguf"),
        ({"a-Q2_K.gguf": 3, "a-IQ1_S.gguf": 2, "a-Q6_K.gguf": 5}, "a-IQ1_S.gguf"),
        ({"a-Q4_K_M.gguf": 2, "b.q4_k_m.gguf": 1}, "b.q4_k_m.gguf"),
        ({"b-q4_0.gguf": 1, "a-q4_0.gguf": 1}, "a-q4_0.gguf"),
        ({"model_Q4_K_M.gguf": 9, "x.gguf": 1}, "model_Q4_K_M.gguf"),
        (
            {"a-Q4_K_M_L.gguf": 1, "a-IQ4_0.gguf": 2, "a-bf16.gguf": 3, "a-Q4_0_4_4.gguf": 4, "a-f16.gguf": 9},
            "a-f16.gguf",
        ),
        ({"mmproj-q4_k_m.gguf": 1, "a-q8_0.gguf": 9}, "a-q8_0.gguf"),
        ({"._a-q4_k_m.gguf": 1, "a-q8_0.gguf": 9}, "a-q8_0.gguf"),
        ({"a-00002-of-00002.gguf": 1, "a-00001-of-00002.gguf": 1, "b.gguf": 3}, "a-00001-of-00002.gguf"),
        ({"a-00002-of-00002.gguf": 3, "a-00001-of-00002.gguf": 1, "b.gguf": 3}, "b.gguf"),
        ({"q4_k_m-00001-of-00002.gguf": 1, "a-f16.gguf": 9}, "a-f16.gguf"),
        ({"q4_k_m-00001-of-00002.gguf": 1}, "q4_k_m-00001-of-00002.gguf"),
        ({"a-00002-of-00002.gguf": 1}, None),
        ({"a-00000-of-00002.gguf": 1}, "a-00000-of-00002.gguf"),
    ],
)
def test_a_folder_gives_its_best_quantisation_then_its_smallest(files: dict[str, int], expected: str | None) -> None:
    assert pick(list(files.items())) == expected
    assert pick(list(reversed(files.items()))) == expected


NAMES = st.from_regex(r"[ab](-q4_0|-f16|-Q4_K_M)?(-0000[0-3]-of-0000[1-3])?\.(gguf|GGUF|txt)", fullmatch=True)


@given(st.dictionaries(NAMES, st.integers(0, GIB), max_size=12))
def test_every_model_is_in_one_group_and_the_pick_can_be_loaded(files: dict[str, int]) -> None:
    groups = group(list(files.items()))
    grouped = [name for one in groups for name in one.names]

    assert sorted(grouped) == sorted(name for name in files if is_model(name))
    assert sum(one.size for one in groups) == sum(files[name] for name in grouped)
    for one in groups:
        part = part_of(one.names[0])
        assert (one.missing is None) == (part is None or len(one.names) == part.count)
        assert one.missing not in files
    chosen = pick(list(files.items()))
    assert chosen is None or (chosen in files and (part_of(chosen) or Part("", 1, 1, "")).number == 1)


def test_groups_are_in_order_and_know_their_first_gap() -> None:
    files = [("b-00003-of-00004.gguf", 3), ("c.gguf", 5), ("b-00001-of-00004.gguf", 1), ("a.gguf", 2), ("x.txt", 9)]

    assert group(files) == [
        Group(("a.gguf",), 2),
        Group(("b-00001-of-00004.gguf", "b-00003-of-00004.gguf"), 4, "b-00002-of-00004.gguf"),
        Group(("c.gguf",), 5),
    ]


def test_of_two_splits_with_one_stem_each_stands_alone() -> None:
    files = [("a-00001-of-00002.gguf", 1), ("a-00002-of-00002.gguf", 1), ("a-00001-of-00001.gguf", 1)]

    assert [one.names for one in group(files)] == [
        ("a-00001-of-00001.gguf",),
        ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"),
    ]


def put(path: Path, size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def test_choose_takes_the_best_of_a_folder_and_the_first_of_a_split(tmp_path: Path) -> None:
    best = put(tmp_path / "a-q4_k_m.gguf", 100)
    put(tmp_path / "a-q8_0.gguf", 10)
    put(tmp_path / "deeper" / "a-q4_k_m.gguf", 1)

    assert choose(tmp_path) == best
    assert choose(best) == best
    assert choose(tmp_path / "none.gguf") == tmp_path / "none.gguf"
    assert choose(tmp_path / "s-00003-of-00003.gguf") == tmp_path / "s-00001-of-00003.gguf"


def test_choose_says_that_a_folder_has_no_model(tmp_path: Path) -> None:
    put(tmp_path / "mmproj.gguf")

    assert type(failure_of(choose, tmp_path)) is ModelMissing


def test_parts_are_found_by_name_and_the_first_gap_is_named(tmp_path: Path) -> None:
    whole = put(tmp_path / "model.gguf")
    parts = [put(tmp_path / f"s-0000{number}-of-00003.gguf") for number in (1, 2, 3)]

    assert parts_of(whole) == (whole,)
    assert parts_of(parts[2]) == tuple(parts)
    parts[1].unlink()
    assert failure_of(parts_of, parts[2]).path == parts[1]


def test_beside_a_model_stands_a_lone_projector(tmp_path: Path) -> None:
    model = put(tmp_path / "model.gguf")
    assert beside(model) == (None, False)

    projector = put(tmp_path / "mmproj-f16.gguf")
    put(tmp_path / "._mmproj-f16.gguf")
    put(tmp_path / "mmproj.txt")
    assert beside(model) == (projector, False)

    put(tmp_path / "other.gguf")
    assert beside(model) == (projector, True)

    put(tmp_path / "mmproj-f32.gguf")
    assert beside(model) == (None, True)


def test_families_are_all_models_under_a_folder_in_order(tmp_path: Path) -> None:
    lone = put(tmp_path / "z.gguf", 3)
    parts = [put(tmp_path / "b" / f"s-0000{number}-of-00002.gguf", number) for number in (1, 2)]
    gap = put(tmp_path / "b" / "t-00002-of-00002.gguf", 7)
    seeing = put(tmp_path / "a" / "deep" / "seeing.GGUF", 5)
    projector = put(tmp_path / "a" / "deep" / "mmproj-seeing.gguf")
    put(tmp_path / "c" / "mmproj-orphan.gguf")
    put(tmp_path / "c" / "readme.md")
    put(tmp_path / "folder.gguf" / "notes.txt")

    found = families(tmp_path)

    assert [(one.files, one.size, one.missing, one.projector) for one in found] == [
        ((seeing,), 5, None, projector),
        (tuple(parts), 3, None, None),
        ((gap,), 7, "t-00001-of-00002.gguf", None),
        ((lone,), 3, None, None),
    ]
    assert families(tmp_path) == found


def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside" / "secret.gguf")
    root = tmp_path / "root"
    blob = put(root / "blobs" / "sha256", 9)
    snapshot = root / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    inside = snapshot / "inside.gguf"
    inside.symlink_to(Path("../../blobs/sha256"))
    (snapshot / "out.gguf").symlink_to(outside)
    (snapshot / "folder").symlink_to(outside.parent, target_is_directory=True)
    (snapshot / "around").symlink_to(root, target_is_directory=True)
    gone = snapshot / "gone.gguf"
    gone.symlink_to(Path("../../blobs/none"))

    found = families(root)

    assert [(one.files, one.size) for one in found] == [((gone,), 0), ((inside,), blob.stat().st_size)]


def test_a_folder_that_is_itself_a_link_is_searched(tmp_path: Path) -> None:
    put(tmp_path / "there" / "model.gguf")
    (tmp_path / "here").symlink_to(tmp_path / "there", target_is_directory=True)

    assert [one.files for one in families(tmp_path / "here")] == [(tmp_path / "here" / "model.gguf",)]


def test_a_folder_that_is_gone_or_locked_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(failure_of(families, tmp_path / "none")) is ModelMissing
    assert type(failure_of(families, put(tmp_path / "file"))) is UnreadableModel

    monkeypatch.setattr(os, "listdir", refuse)
    for call in (families, choose):
        error = failure_of(call, tmp_path)
        assert type(error) is UnreadableModel
        assert "Permission denied" in error.sentence


def test_a_locked_subfolder_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_one = put(tmp_path / "open" / "model.gguf")
    put(tmp_path / "locked" / "model.gguf")
    scandir = os.scandir

    def guarded(path: str) -> object:
        return refuse(path) if Path(path).name == "locked" else scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with caplog.at_level(logging.WARNING):
        found = families(tmp_path)

    assert [one.files for one in found] == [(open_one,)]
    (record,) = caplog.records
    assert "locked" in record.getMessage()


def refuse(path: object) -> Any:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
