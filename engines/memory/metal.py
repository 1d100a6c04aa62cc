"""How much memory Metal recommends to use at most, asked of the system without MLX."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

CORE_GRAPHICS = "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics"
"""Without it in the process there is no default device (its documentation says so for command-line tools)."""
METAL = "/System/Library/Frameworks/Metal.framework/Metal"
OBJC = "/usr/lib/libobjc.A.dylib"
PROPERTY = b"recommendedMaxWorkingSetSize"
RELEASE = b"release"


def working_set_bytes(load: Callable[[str], Any] | None = None) -> int | None:
    """``recommendedMaxWorkingSetSize`` of the default GPU: bytes it works with before it slows down.

    About two thirds to three quarters of the RAM of an Apple Silicon machine. None on other systems, and where there
    is no GPU (a virtual machine). ``load`` opens a library; a fake of it gives the tests their machine.
    """
    if load is None:
        if sys.platform != "darwin":
            return None
        load = ctypes.CDLL
    try:
        load(CORE_GRAPHICS)
        metal, objc = load(METAL), load(OBJC)
        return _ask(metal, objc)
    except (OSError, AttributeError) as error:  # no such library, no such symbol in it
        log.warning("Metal cannot be asked for its working set: %s", error)
        return None


def _ask(metal: Any, objc: Any) -> int | None:
    create, selector, send = metal.MTLCreateSystemDefaultDevice, objc.sel_registerName, objc.objc_msgSend
    # ctypes takes results for 32-bit integers unless told: pointers and sizes would be cut.
    create.restype, create.argtypes = ctypes.c_void_p, []
    selector.restype, selector.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    # Arguments must be declared: arm64 passes undeclared (variadic) ones on the stack, where no method looks.
    send.restype, send.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_void_p]
    device = create()
    if not device:
        return None
    try:
        return int(send(device, selector(PROPERTY))) or None
    finally:
        send(device, selector(RELEASE))  # "create" in its name: we own it
