"""The user's Run key, over a fake of winreg that keeps what it is told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.autostart import AutostartError, Command
from app.autostart.windows import APPROVED, COMMAND_CHARACTERS, RUN, RunKey

COMMAND = Command((r"C:\Program Files\Plimsoll\plimsoll.exe", "run", "--home", "C:\\my home\\"))


class FakeRegistry:
    """winreg at the call: keys by path, values by name."""

    HKEY_CURRENT_USER, KEY_READ, KEY_WRITE, REG_SZ = 0x80000001, 0x20019, 0x20006, 1

    def __init__(self, keys: dict[str, dict[str, object]]) -> None:
        self.keys = keys
        self.refuses = False
        self._writable: set[str] = set()

    @contextmanager
    def OpenKey(self, root: int, path: str, reserved: int = 0, access: int = KEY_READ) -> Iterator[str]:
        assert (root, reserved) == (self.HKEY_CURRENT_USER, 0)
        if self.refuses:
            raise PermissionError(errno.EACCES, "Access is denied")
        if path not in self.keys:
            raise FileNotFoundError(errno.ENOENT, path)
        if access == self.KEY_WRITE:
            self._writable.add(path)
        yield path
        self._writable.discard(path)

    @contextmanager
    def CreateKeyEx(self, root: int, path: str, reserved: int, access: int) -> Iterator[str]:
        self.keys.setdefault(path, {})
        with self.OpenKey(root, path, reserved, access) as key:
            yield key

    def QueryValueEx(self, key: str, name: str) -> tuple[object, int]:
        if name not in self.keys[key]:
            raise FileNotFoundError(errno.ENOENT, name)
        return self.keys[key][name], self.REG_SZ

    def SetValueEx(self, key: str, name: str, reserved: int, kind: int, value: str) -> None:
        assert key in self._writable
        assert (reserved, kind) == (0, self.REG_SZ)
        self.keys[key][name] = value

    def DeleteValue(self, key: str, name: str) -> None:
        assert key in self._writable
        if name not in self.keys[key]:
            raise FileNotFoundError(errno.ENOENT, name)
        del self.keys[key][name]


def test_it_is_switched_on_and_off_beside_others():
    registry = FakeRegistry({RUN: {"Other": "other.exe"}})
    autostart = RunKey(registry)
    assert not autostart.enabled()
    autostart.enable(COMMAND)
    line = r'"C:\Program Files\Plimsoll\plimsoll.exe" run --home "C:\my home\\"'
    assert registry.keys[RUN] == {"Other": "other.exe", "Plimsoll": line}
    assert autostart.enabled()
    autostart.disable()
    assert registry.keys[RUN] == {"Other": "other.exe"}
    assert not autostart.enabled()
    autostart.disable()


def test_the_key_is_made_where_it_is_missing():
    registry = FakeRegistry({})
    assert not RunKey(registry).enabled()
    RunKey(registry).disable()
    RunKey(registry).enable(COMMAND)
    assert RunKey(registry).enabled()


@pytest.mark.parametrize(
    ("approved", "on"),
    [
        (b"\x02" + bytes(11), True),
        (b"\x06" + bytes(11), True),
        (b"\x03" + bytes(11), False),
        (b"\x07", False),
        (b"", True),
    ],
)
def test_what_the_task_manager_switched_off_is_off_until_it_is_switched_on_here(approved: bytes, on: bool):
    registry = FakeRegistry({RUN: {"Plimsoll": "plimsoll.exe run"}, APPROVED: {"Plimsoll": approved}})
    autostart = RunKey(registry)
    assert autostart.enabled() is on
    autostart.enable(COMMAND)
    assert autostart.enabled()
    assert registry.keys[APPROVED] == {}


def test_a_command_line_that_windows_would_not_take_is_a_sentence():
    registry = FakeRegistry({})
    with pytest.raises(AutostartError, match=f"Windows takes {COMMAND_CHARACTERS}"):
        RunKey(registry).enable(Command(("x" * (COMMAND_CHARACTERS + 1),)))
    assert registry.keys == {}


def test_a_registry_that_refuses_is_a_sentence():
    registry = FakeRegistry({RUN: {}})
    registry.refuses = True
    autostart = RunKey(registry)
    for attempt in (autostart.enabled, autostart.disable, lambda: autostart.enable(COMMAND)):
        with pytest.raises(AutostartError, match=r"Access is denied.*Settings > Apps > Startup"):
            attempt()
