"""Metal's working set against a fake of the three libraries that behaves as ctypes' functions do."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from engines.memory.metal import CORE_GRAPHICS, METAL, OBJC, working_set_bytes

DEVICE = 0x6000_0123_4567
"""A pointer that does not fit 32 bits."""
SELECTORS = {b"recommendedMaxWorkingSetSize": 0x1_F000_0001, b"release": 0x1_F000_0002}
GIB = 1 << 30


class Function:
    """A foreign function: it answers rightly only where its types were declared."""

    restype: Any = ctypes.c_int
    argtypes: Any = None

    def __init__(self, call: Callable[..., int | None]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        assert self.argtypes is not None
        assert len(arguments) == len(self.argtypes)
        value = self.call(*(kind(one).value for kind, one in zip(self.argtypes, arguments, strict=True)))
        return self.restype(value).value if value is not None else None


class Mac:
    """A machine with one GPU, or none."""

    def __init__(self, size: int, device: int | None = DEVICE) -> None:
        self.size = size
        self.device = device
        self.loaded: list[str] = []
        self.released = 0

    def load(self, path: str) -> Any:
        self.loaded.append(path)
        return {
            CORE_GRAPHICS: SimpleNamespace(),
            METAL: SimpleNamespace(MTLCreateSystemDefaultDevice=Function(self.create)),
            OBJC: SimpleNamespace(sel_registerName=Function(SELECTORS.get), objc_msgSend=Function(self.send)),
        }[path]

    def create(self) -> int | None:
        assert CORE_GRAPHICS in self.loaded
        return self.device

    def send(self, receiver: int, selector: int) -> int:
        assert receiver == DEVICE
        if selector == SELECTORS[b"release"]:
            self.released += 1
            return 0
        assert selector == SELECTORS[b"recommendedMaxWorkingSetSize"]
        return self.size


@pytest.mark.parametrize("size", [12 * GIB, 96 * GIB, 400 * GIB])
def test_the_size_is_read_in_64_bits_and_the_device_given_back(size: int) -> None:
    mac = Mac(size)
    assert working_set_bytes(mac.load) == size
    assert mac.released == 1


@pytest.mark.parametrize(("mac", "released"), [(Mac(GIB, None), 0), (Mac(0), 1)])
def test_a_machine_without_a_gpu_has_none(mac: Mac, released: int) -> None:
    assert working_set_bytes(mac.load) is None
    assert mac.released == released


def test_libraries_that_are_not_there_are_said(caplog: pytest.LogCaptureFixture) -> None:
    def missing(path: str) -> Any:
        raise OSError(f"dlopen({path}): no such file")

    with caplog.at_level(logging.WARNING):
        assert working_set_bytes(missing) is None
    assert CORE_GRAPHICS in caplog.text


def test_a_library_without_the_function_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert working_set_bytes(lambda _: SimpleNamespace()) is None
    assert "MTLCreateSystemDefaultDevice" in caplog.text


def test_other_systems_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert working_set_bytes() is None


@pytest.mark.skipif(sys.platform != "darwin", reason="Metal is macOS's")
def test_this_mac_answers() -> None:
    found = working_set_bytes()
    assert found is None or GIB < found < 4096 * GIB
