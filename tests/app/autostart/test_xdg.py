"""Entries in the autostart folder: real files, and quotes that come back as they went in."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.autostart import AutostartError, Command
from app.autostart.xdg import DesktopEntry, entry_text, exec_line, is_on, value
from tests.fixtures.xvfb import wait_until

COMMAND = Command(("/usr/bin/python3", "-m", "app", "run", "--home", "/my home"), Path("/src"))

UNESCAPED = {"\\\\": "\\", "\\n": "\n", "\\t": "\t", "\\r": "\r", "\\s": " "}

# What a file can hold and a system can start: no NUL, no lone surrogates.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def unescaped(text: str) -> str:
    """A value of type string, read as the specification says."""
    return re.sub(r"\\.", lambda found: UNESCAPED[found[0]], text)


def parsed(line: str) -> list[str]:
    """A command line, read as the specification says: the value, the field codes, then the quotes."""
    assert not set(line) & set("\n\r")
    line = re.sub("%(.)", lambda found: {"%": "%"}[found[1]], unescaped(line))
    words = re.compile(r'"(?P<quoted>(?:\\.|[^"\\`$])*)"|(?P<plain>[^\s"\'\\><~|&;$*?#()`]+)', re.DOTALL)
    found = []
    while line:
        word = words.match(line)
        assert word is not None, f"no word at {line!r}"
        found.append(word["plain"] or re.sub(r"\\(.)", r"\1", word["quoted"], flags=re.DOTALL))
        line = line[word.end() :]
        assert line == "" or line.startswith(" ")
        line = line[1:]
    return found


@given(st.lists(texts, min_size=1))
@example(["/my folder/%p", "--home", 'a"b', "`$HOME`", "\\", "\\n", "\n\t\r", "", " ", "~", "*", "é✓", "#", "a=b"])
def test_every_command_line_comes_back(argv: list[str]):
    assert parsed(exec_line(argv)) == argv


@given(texts)
@example(" leading")
@example("\\s\n")
def test_every_value_comes_back_in_one_line(text: str):
    written = value(text)
    assert unescaped(written) == text
    assert written == written.lstrip(" ")
    assert not set(written) & set("\n\r")


@given(st.lists(texts, min_size=1), texts)
def test_whatever_it_starts_an_entry_is_on(argv: list[str], folder: str):
    lines = entry_text(Command(tuple(argv), Path(folder))).split("\n")
    assert lines[0] == "[Desktop Entry]"
    assert len(lines) == 10
    assert is_on("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "on"),
    [
        (entry_text(COMMAND), True),
        ("[Desktop Entry]\nType=Application\nExec=x\nHidden=false\n", True),
        ("[Desktop Entry]\nType=Application\nExec=x\nHidden=true\n", False),
        ("[Desktop Entry]\nType=Application\nExec=x\nHidden = true \n", False),
        ("[Desktop Entry]\nType=Application\nExec=x\n#Hidden=true\n", True),
        ("[Desktop Entry]\nType=Application\nExec=x\nX-GNOME-Autostart-enabled=false\n", False),
        ("[Desktop Entry]\nType=Application\nExec=x\nX-GNOME-Autostart-enabled=true\n", True),
        ("[Desktop Entry]\nType=Application\nExec=x\n\n[Desktop Action q]\nHidden=true\n", True),
        ("", False),
        ("nonsense", False),
    ],
)
def test_a_hidden_entry_is_off(text: str, on: bool):
    assert is_on(text) is on


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return tmp_path / "config" / "autostart" / "plimsoll.desktop"


@pytest.fixture
def autostart(tmp_path: Path) -> DesktopEntry:
    return DesktopEntry({"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_CONFIG_DIRS": f"{tmp_path / 'etc'}:"})


def test_it_is_switched_on_and_off(autostart: DesktopEntry, entry: Path):
    assert not autostart.enabled()
    autostart.disable()
    autostart.enable(COMMAND)
    assert entry.read_text() == (
        "[Desktop Entry]\n"
        "Type=Application\n"
        "Name=Plimsoll\n"
        "Comment=Runs language models on this machine\n"
        "Icon=plimsoll\n"
        'Exec=/usr/bin/python3 -m app run --home "/my home"\n'
        "Path=/src\n"
        "Terminal=false\n"
        "StartupNotify=false\n"
    )
    assert autostart.enabled()
    autostart.disable()
    assert not entry.exists()
    assert not autostart.enabled()


def test_what_the_user_hid_elsewhere_is_off_until_it_is_switched_on_here(autostart: DesktopEntry, entry: Path):
    autostart.enable(COMMAND)
    entry.write_text(entry.read_text() + "Hidden=true\n")
    assert not autostart.enabled()
    autostart.enable(COMMAND)
    assert autostart.enabled()


def test_an_administrators_entry_counts_until_the_user_hides_it(autostart: DesktopEntry, entry: Path, tmp_path: Path):
    shared = tmp_path / "etc" / "autostart" / "plimsoll.desktop"
    shared.parent.mkdir(parents=True)
    shared.write_text(entry_text(Command(("/usr/bin/plimsoll", "run"))))
    assert autostart.enabled()
    autostart.disable()
    assert not autostart.enabled()
    assert "Hidden=true" in entry.read_text()
    autostart.enable(COMMAND)
    assert autostart.enabled()


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOME": "/h"}, "/h/.config"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": ""}, "/h/.config"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}, "/c"),
    ],
)
def test_the_folder_is_the_specifications(environ: dict[str, str], folder: str):
    assert DesktopEntry(environ)._file == Path(folder) / "autostart" / "plimsoll.desktop"


def test_a_folder_that_is_none_of_ours_is_a_sentence(tmp_path: Path):
    (tmp_path / "config").write_text("a file")
    autostart = DesktopEntry({"XDG_CONFIG_HOME": str(tmp_path / "config")})
    with pytest.raises(AutostartError, match=r"plimsoll\.desktop cannot be written") as caught:
        autostart.enable(COMMAND)
    assert caught.value.sentence.endswith("Make that folder yours, or edit it yourself.")


def test_a_path_that_no_entry_can_hold_is_a_sentence(autostart: DesktopEntry, entry: Path):
    with pytest.raises(AutostartError, match="not valid UTF-8"):
        autostart.enable(Command(("/\udcff/plimsoll", "run")))
    assert not entry.exists()


@pytest.mark.skipif(shutil.which("gio") is None, reason="GLib's launcher (gio) is not installed here")
def test_glib_starts_what_was_meant(autostart: DesktopEntry, entry: Path, tmp_path: Path):
    awkward = ["a b", "50%f", 'q"q', "`date`", "$HOME", "back\\slash", "", "#", "two\nlines", "é"]
    folder = tmp_path / "with blanks"
    folder.mkdir()
    script = folder / "say.sh"
    script.write_text(
        '#!/bin/sh\npwd > told\nfor argument in "$@"; do printf "%s\\0" "$argument" >> told; done\nmv told done\n'
    )
    script.chmod(0o755)
    autostart.enable(Command((str(script), *awkward), folder))
    subprocess.run(["gio", "launch", str(entry)], check=True, capture_output=True, timeout=30)
    told = until_there(folder / "done")
    assert told == f"{folder}\n" + "".join(f"{argument}\0" for argument in awkward)


def until_there(file: Path) -> str:
    wait_until(file.exists, f"{file} to be written")
    return file.read_text()
