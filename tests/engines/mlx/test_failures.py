"""Every way an MLX server ends while it loads is exactly one error. The texts were seen; see test_mlx_child.py."""

from __future__ import annotations

import pytest

from engines import errors
from engines.mlx.failures import classify


@pytest.mark.parametrize(
    ("exit_code", "tail", "kind"),
    [
        (1, "address already in use: 127.0.0.1:27300 (Address already in use)", errors.PortTaken),
        (3, "ValueError: Model type frobnicate not supported. Error: No module", errors.ArchitectureUnknown),
        (3, "RuntimeError: [load_safetensors] Invalid json header length", errors.ModelFileTruncated),
        (3, "FileNotFoundError: No safetensors found in /m", errors.ModelFileMissing),
        (-6, "RuntimeError: [metal::malloc] Attempting to allocate 9 bytes", errors.OutOfMemory),
        (-6, "Command buffer execution failed: Insufficient Memory (kIOGPU...)", errors.OutOfMemory),
        (1, "MemoryError", errors.OutOfMemory),
        (-9, "", errors.KilledWhileLoading),
        (-11, "", errors.ExitedWhileLoading),
        (3, "ERROR:    Application startup failed. Exiting.", errors.ExitedWhileLoading),
    ],
)
def test_the_class_of_an_end(exit_code: int, tail: str, kind: type[errors.LoadError]) -> None:
    error = classify("tiny", exit_code, tail)
    assert type(error) is kind
    assert error.tail == tail
    assert "tiny was not loaded" in error.sentence


def test_an_end_that_is_not_known_says_how() -> None:
    assert "signal 11" in classify("tiny", -11, "").sentence
    assert "exit code 3" in classify("tiny", 3, "").sentence
