"""Pins: live at once, written for the next start, and never half changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app import settings
from app.library.pins import Pins
from app.settings import SettingsError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


@pytest.fixture
def told() -> list[tuple[str, bool]]:
    return []


@pytest.fixture
def pins(file: Path, told: list[tuple[str, bool]]) -> Pins:
    file.write_text('# mine\nport = 4000\npinned = ["a"]\n')
    return Pins(file, settings.load(file).pinned, lambda model, pinned: told.append((model, pinned)))


async def test_a_pin_is_live_told_and_written(pins: Pins, file: Path, told: list[tuple[str, bool]]):
    assert "a" in pins
    assert "b" not in pins
    await pins.set("b", True)
    assert pins.names == {"a", "b"}
    assert told == [("b", True)]
    assert file.read_text() == '# mine\nport = 4000\npinned = ["a", "b"]\n'
    await pins.set("a", False)
    assert "a" not in pins
    await pins.set("b", False)
    assert told == [("b", True), ("a", False), ("b", False)]
    assert file.read_text() == "# mine\nport = 4000\n"


async def test_what_is_so_already_changes_nothing(pins: Pins, file: Path, told: list[tuple[str, bool]]):
    before = file.stat().st_mtime_ns
    await pins.set("a", True)
    await pins.set("b", False)
    assert told == []
    assert pins.names == {"a"}
    assert file.stat().st_mtime_ns == before


async def test_pins_written_by_hand_meanwhile_are_kept_and_count(pins: Pins, file: Path, told: list[tuple[str, bool]]):
    file.write_text('pinned = ["by hand"]\n')
    await pins.set("b", True)
    assert pins.names == {"by hand", "b"}
    assert told == [("a", False), ("b", True), ("by hand", True)]
    assert settings.load(file).pinned == ("by hand", "b")


async def test_many_at_once_all_count(pins: Pins, file: Path):
    await asyncio.gather(*(pins.set(f"m{n}", True) for n in range(10)))
    assert pins.names == {"a", *(f"m{n}" for n in range(10))}
    assert set(settings.load(file).pinned) == pins.names


async def test_settings_that_cannot_be_read_change_nothing(pins: Pins, file: Path, told: list[tuple[str, bool]]):
    file.write_text("pinned = nonsense")
    with pytest.raises(SettingsError, match="not valid TOML"):
        await pins.set("b", True)
    assert told == []
    assert pins.names == {"a"}
