"""Why a server did not start: what it printed, matched against what the real ones print.

The texts are llama.cpp's (b10434 and b11434, observed; CUDA's from the source of b11434).
"""

from __future__ import annotations

import re

from engines import errors

HOST = (
    ("couldn't bind HTTP server socket", errors.PortTaken),
    ("error: invalid argument:", errors.BadArgument),
    ("invalid magic characters", errors.NotAModelFile),
    ("data is not within the file bounds", errors.ModelFileTruncated),
    ("failed to read key-value pairs", errors.ModelFileTruncated),
    ("failed to read tensor info", errors.ModelFileTruncated),
    ("unknown model architecture", errors.ArchitectureUnknown),
    ("failed to open GGUF file", errors.ModelFileMissing),
)
GPU = (
    ("no kernel image is available for execution on the device", errors.GpuTooOld),
    ("has no device code compatible with CUDA arch", errors.GpuTooOld),
    ("CUDA driver version is insufficient for CUDA runtime version", errors.DriverTooOld),
    ("the provided PTX was compiled with an unsupported toolchain", errors.DriverTooOld),
    ("cudaMalloc failed: out of memory", errors.GpuOutOfMemory),
    ("CUDA error: out of memory", errors.GpuOutOfMemory),
    ("cudaMalloc failed: ", errors.GpuError),
    ("CUDA error: ", errors.GpuError),
    ("no CUDA-capable device is detected", errors.GpuError),
    ("failed to initialize CUDA: ", errors.GpuError),
)
MEMORY = (
    ("insufficient memory (attempted to allocate", errors.OutOfMemory),
    ("failed to allocate buffer for kv cache", errors.OutOfMemory),
    ("failed to allocate compute pp buffers", errors.OutOfMemory),
    ("std::bad_alloc", errors.OutOfMemory),
    ("what():  Resource temporarily unavailable", errors.OutOfMemory),  # no memory for the stack of a thread
    ("failed to map segment from shared object", errors.OutOfMemory),
)
BUFFER = re.compile(r"(?:unable to allocate .* buffer|failed to allocate \S+ buffer of size)")
CARD_BUFFER = re.compile(r"(?:unable to allocate CUDA\d+ buffer|failed to allocate CUDA\d+ buffer of size)")
"""A buffer on a card; what the driver said of it may have scrolled out of the tail."""
NO_REASON = re.compile(r"[\d.]+ [DIW] .*|cmd_child_to_router:.*|")
"""A line of a llama-server's log that is no error. It logs in a thread that does not survive its exit: 14 of 400
failing starts of b10434 ended without their reason, 12 of 60 on a busy machine."""
FAILED = 1
"""The exit code of a llama-server that gives up by itself."""
ARCHITECTURE = re.compile(r"unknown model architecture: '([^']*)'")
SIGKILL, SIGSEGV = 9, 11


def lost(model: str, exit_code: int, tail: str) -> errors.ChildLost:
    """The error for a server that ended while it served: what its card said last is the cause."""
    cause = next((of_card for text, of_card in GPU if text in tail), None)
    return errors.ChildLost(model, exit_code, tail=tail, cause=cause)


def classify(model: str, exit_code: int, tail: str) -> errors.LoadError:
    """The error for a server that ended while it loaded ``model``.

    ``exit_code`` is negative for a signal. GPU texts come first: an allocation that fails on the card is followed
    by the host's own words for it.
    """
    for text, of_card in GPU:
        if text in tail:
            return of_card(model, tail=tail)
    if CARD_BUFFER.search(tail):
        return errors.GpuOutOfMemory(model, tail=tail)
    for text, kind in (*HOST, *MEMORY):
        if text in tail:
            found = ARCHITECTURE.search(tail)
            detail = found.group(1) if found and kind is errors.ArchitectureUnknown else ""
            return kind(model, detail=detail, tail=tail)
    if BUFFER.search(tail):
        return errors.OutOfMemory(model, tail=tail)
    if exit_code == -SIGKILL:
        return errors.KilledWhileLoading(model, tail=tail)
    if exit_code == -SIGSEGV:
        # Seen under an address-space limit: an allocation failed and nobody looked.
        return errors.OutOfMemory(model, detail="it crashed without a word", tail=tail)
    if exit_code == FAILED and all(NO_REASON.fullmatch(line) for line in tail.splitlines()):
        return errors.ReasonLost(model, tail=tail)
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return errors.ExitedWhileLoading(model, detail=how, tail=tail)
