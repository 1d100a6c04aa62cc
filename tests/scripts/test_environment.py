from __future__ import annotations

import shutil
import subprocess
import sys

import environment
import pytest
import stamps
from environment import LEVELS, Venv, is_current, parse_pyvenv, usable_version
from steps import SetupError

FACTS = {"level": "test", "locks": "k", "python": "3.11.7"}


@pytest.mark.parametrize(
    ("found", "level", "current"),
    [
        (FACTS, "test", True),
        (FACTS, "desktop", True),
        ({**FACTS, "level": "desktop"}, "desktop", True),
        ({**FACTS, "level": "desktop"}, "test", False),
        ({**FACTS, "locks": "other"}, "desktop", False),
        ({**FACTS, "python": "3.12.1"}, "test", False),
        ({**FACTS, "level": "unknown"}, "desktop", False),
        ({}, "desktop", False),
    ],
)
def test_a_stamp_covers_its_level_and_the_smaller_ones(found, level, current):
    assert is_current(found, level, "k", "3.11.7") is current


def test_a_pyvenv_is_read():
    text = "home = /usr/bin\nVersion = 3.11.2\n\nno value\ncommand = a = b\n"
    assert parse_pyvenv(text) == {"home": "/usr/bin", "version": "3.11.2", "command": "a = b"}


@pytest.mark.parametrize(
    ("version", "usable"),
    [("3.11.0", True), ("3.12", True), ("4.0.1", True), ("3.10.13", False), ("", False), ("3", False), ("x.y", False)],
)
def test_only_a_python_that_the_app_runs_on_is_used(version, usable):
    assert usable_version(version) is usable


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A real environment, without pip: anything that calls pip in it fails."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


@pytest.fixture
def venv(bare, tmp_path):
    shutil.copytree(bare, tmp_path / "venv", symlinks=True)
    return Venv(tmp_path / "venv")


def test_a_working_environment_is_used_as_it_is(venv):
    marker = venv.folder / "marker"
    marker.touch()
    assert venv.make() == ".".join(map(str, sys.version_info[:3]))
    assert marker.exists()


def test_an_environment_whose_python_is_gone_has_no_version(venv):
    config = venv.folder / "pyvenv.cfg"
    config.write_text("home = /gone\nversion = 3.11.7\nexecutable = /gone/python3.11\n")
    assert venv.python_version() is None


def test_an_environment_without_an_interpreter_has_no_version(venv):
    venv.python.unlink()
    assert venv.python_version() is None
    assert Venv(venv.folder / "nothing").python_version() is None


def test_a_second_set_up_calls_no_pip_and_a_failed_one_leaves_no_stamp(venv):
    key = stamps.digest_of_files(*LEVELS.values())
    good = {"level": "test", "locks": key, "python": str(venv.python_version())}
    stamps.write(venv.stamp, good)
    assert environment.set_up("test", venv) is False
    assert environment.set_up("desktop", venv) is False
    stamps.write(venv.stamp, {**good, "locks": "of another commit"})
    with pytest.raises(SetupError) as refused:
        environment.set_up("desktop", venv)
    assert refused.value.code == "packages"
    assert not venv.stamp.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"', "null"])
def test_an_unreadable_stamp_says_nothing(tmp_path, content):
    (tmp_path / "stamp").write_text(content)
    assert stamps.read(tmp_path / "stamp") == {}
    assert stamps.read(tmp_path / "none") == {}
    assert stamps.read(tmp_path / "stamp" / "below") == {}


def test_a_stamp_comes_back_as_written(tmp_path):
    stamps.write(tmp_path / "new" / "stamp", {"b": 1, "a": "x"})
    assert stamps.read(tmp_path / "new" / "stamp") == {"a": "x", "b": 1}
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["stamp"]
