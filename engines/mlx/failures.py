"""Why an MLX server ended while it loaded: from what it printed to one error type. Pure.

The texts are those of mlx 0.32.4 and mlx-vlm 0.7.10 (observed, but for Metal's).
"""

from __future__ import annotations

import re

from engines import errors

TEXTS: tuple[tuple[str, type[errors.LoadError]], ...] = (
    ("address already in use", errors.PortTaken),
    ("Insufficient Memory", errors.OutOfMemory),  # Metal's kIOGPUCommandBufferCallbackErrorOutOfMemory
    ("[metal::malloc]", errors.OutOfMemory),
    ("Unable to allocate", errors.OutOfMemory),
    ("std::bad_alloc", errors.OutOfMemory),
    ("MemoryError", errors.OutOfMemory),
    ("failed to map segment from shared object", errors.OutOfMemory),
    ("[load_safetensors]", errors.ModelFileTruncated),
    ("SafetensorError", errors.ModelFileTruncated),
    ("FileNotFoundError", errors.ModelFileMissing),
)
ARCHITECTURE = re.compile(r"Model type ([\w.-]+) not supported")
SIGKILL = 9


def classify(model: str, exit_code: int, tail: str) -> errors.LoadError:
    """The error for a server that ended while it loaded ``model``; ``exit_code`` is negative for a signal."""
    if found := ARCHITECTURE.search(tail):
        return errors.ArchitectureUnknown(model, detail=found[1], tail=tail)
    for text, kind in TEXTS:
        if text in tail:
            return kind(model, tail=tail)
    if exit_code == -SIGKILL:
        return errors.KilledWhileLoading(model, tail=tail)
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return errors.ExitedWhileLoading(model, detail=how, tail=tail)
