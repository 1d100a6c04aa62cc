"""What the system is told to start, and by which of its ways."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.autostart import IN_FOLDER, Command, command_for, for_this_system, start_command
from app.autostart.macos import LaunchAgent
from app.autostart.windows import RunKey
from app.autostart.xdg import DesktopEntry

ROOT = Path(__file__).resolve().parents[3]
CHECKOUT = Path("/src/plimsoll")


@pytest.mark.parametrize(
    ("platform", "executable", "checkout", "command"),
    [
        ("linux", "/v/bin/python", CHECKOUT, Command(("/v/bin/python", "-m", "app", "run"), CHECKOUT)),
        ("darwin", "/v/bin/python", CHECKOUT, Command(("/v/bin/python", "-m", "app", "run"), CHECKOUT)),
        (
            "win32",
            r"C:\v\Scripts\python.exe",
            CHECKOUT,
            Command((r"C:\v\Scripts\pythonw.exe", "-c", IN_FOLDER, str(CHECKOUT), "run")),
        ),
        ("linux", "/opt/plimsoll/plimsoll", None, Command(("/opt/plimsoll/plimsoll", "run"))),
        ("win32", r"C:\P\plimsoll.exe", None, Command((r"C:\P\plimsoll.exe", "run"))),
    ],
)
def test_each_kind_of_program_is_started_as_it_was(
    platform: str, executable: str, checkout: Path | None, command: Command
):
    assert command_for(platform, executable, ["run"], checkout) == command


def test_this_program_would_start_from_its_checkout():
    command = start_command(["run", "--home", "/h"])
    assert command == command_for(sys.platform, sys.executable, ["run", "--home", "/h"], ROOT)


def test_the_way_of_windows_starts_the_program_in_its_folder(tmp_path: Path):
    command = (sys.executable, "-c", IN_FOLDER, str(ROOT), "--version")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("plimsoll ")


@pytest.mark.parametrize(
    ("platform", "kind"), [("linux", DesktopEntry), ("freebsd14", DesktopEntry), ("darwin", LaunchAgent)]
)
def test_each_system_has_its_way(platform: str, kind: type, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", platform)
    assert isinstance(for_this_system(), kind)


def test_windows_has_its_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "winreg", object())
    assert isinstance(for_this_system(), RunKey)
