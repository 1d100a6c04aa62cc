"""The launch agent: a real property list, which launchd alone could read for us."""

from __future__ import annotations

import plistlib
from pathlib import Path

import pytest

from app.autostart import AutostartError, Command
from app.autostart.macos import LaunchAgent

COMMAND = Command(("/v/bin/python", "-m", "app", "run", "--home", "/my <home> & more"), Path("/src"))


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return tmp_path / "LaunchAgents" / "plimsoll.plist"


@pytest.fixture
def autostart(agent: Path) -> LaunchAgent:
    return LaunchAgent(agent.parent)


def test_it_is_switched_on_and_off(autostart: LaunchAgent, agent: Path):
    assert not autostart.enabled()
    autostart.disable()
    autostart.enable(COMMAND)
    assert plistlib.loads(agent.read_bytes()) == {
        "Label": "plimsoll",
        "ProgramArguments": ["/v/bin/python", "-m", "app", "run", "--home", "/my <home> & more"],
        "WorkingDirectory": "/src",
        "RunAtLoad": True,
        "ProcessType": "Interactive",
        "LimitLoadToSessionType": "Aqua",
    }
    assert autostart.enabled()
    autostart.disable()
    assert not agent.exists()


def test_a_program_that_is_whole_in_itself_needs_no_folder(autostart: LaunchAgent, agent: Path):
    autostart.enable(Command(("/Applications/Plimsoll.app/Contents/MacOS/plimsoll", "run")))
    assert "WorkingDirectory" not in plistlib.loads(agent.read_bytes())


@pytest.mark.parametrize(
    ("told", "on"),
    [({"RunAtLoad": True}, True), ({"RunAtLoad": True, "Disabled": True}, False), ({}, False), ([], False)],
)
def test_a_disabled_agent_is_off(told: dict[str, bool] | list[str], on: bool, autostart: LaunchAgent, agent: Path):
    agent.parent.mkdir()
    agent.write_bytes(plistlib.dumps(told))
    assert autostart.enabled() is on


@pytest.mark.parametrize("damaged", [b"", b"nonsense", b"<?xml version='1.0'?><plist><dict>", b"bplist00"])
def test_a_damaged_agent_is_a_sentence(damaged: bytes, autostart: LaunchAgent, agent: Path):
    agent.parent.mkdir()
    agent.write_bytes(damaged)
    with pytest.raises(AutostartError, match=r"plimsoll\.plist cannot be read"):
        autostart.enabled()


def test_what_cannot_be_written_is_a_sentence(autostart: LaunchAgent, agent: Path):
    agent.parent.write_text("a file")
    with pytest.raises(AutostartError, match="cannot be written"):
        autostart.enable(COMMAND)
    agent.parent.unlink()
    with pytest.raises(AutostartError, match="cannot be written"):
        autostart.enable(Command(("/\x01/plimsoll",)))
