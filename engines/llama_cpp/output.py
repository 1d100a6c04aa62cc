"""What a llama-server at ``-lv 4`` prints about its memory, as a value. Pure.

With ``--fit`` the lines of a context come twice, first from the probing pass: those of the last context count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MIB = 1024 * 1024
BUFFER = re.compile(r"(\S+)\s+(model|KV|RS|compute|output) buffer size\s*=\s*(\d+\.\d+) MiB")
"""``load_tensors:  CPU_REPACK model buffer size =    12.66 MiB``"""
FLASH = re.compile(
    r"Flash Attention (?:was auto, set to )?(enabled|disabled|not supported)|\bflash_attn\s*=\s*(enabled|disabled)\b"
)
"""What was resolved from ``auto``, or what the command line fixed."""
OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
MODEL_BEGINS = "loading model tensors"
CONTEXT_BEGINS = "constructing llama_context"
COPIES = ("CPU_REPACK", "CPU_AARCH64", "CPU_KLEIDIAI", "CPU_RISCV64_SPACEMIT", "AMX")
"""Buffers of weights that are a copy in another order."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer; the server prints hundredths of a MiB."""

    device: str
    """``CPU``, ``CPU_Mapped``, ``AMX``, ``CUDA0`` ..."""
    kind: str
    """``model``, ``KV``, ``RS`` (the state of recurrent layers), ``compute`` or ``output``."""
    size: int
    """Bytes, rounded as printed."""


@dataclass(frozen=True, slots=True)
class ServerOutput:
    """What a load told of itself. None and empty: it did not say."""

    buffers: tuple[Buffer, ...] = ()
    flash_attention: bool | None = None
    offloaded: tuple[int, int] | None = None
    """Layers on a GPU, and all. ``N of N`` proves nothing: a machine without a GPU prints it too."""

    @property
    def kv(self) -> int | None:
        """Bytes of all KV caches."""
        return self.total("KV")

    @property
    def compute(self) -> int | None:
        """Bytes of the compute buffers."""
        return self.total("compute")

    @property
    def repacked(self) -> int | None:
        """Bytes of the copy of the weights; 0 where the model was loaded and nothing was copied."""
        if self.total("model") is None:
            return None
        return sum(buffer.size for buffer in self.buffers if buffer.kind == "model" and buffer.device in COPIES)

    def total(self, kind: str) -> int | None:
        """Bytes of all buffers of one kind; None where there is none."""
        sizes = [buffer.size for buffer in self.buffers if buffer.kind == kind]
        return sum(sizes) if sizes else None


def read_output(text: str) -> ServerOutput:
    """Read what a child printed while it loaded."""
    model: list[Buffer] = []
    context: list[Buffer] = []
    flash: bool | None = None
    offloaded: tuple[int, int] | None = None
    for line in text.splitlines():
        if MODEL_BEGINS in line:
            model = []
        elif CONTEXT_BEGINS in line:
            context, flash = [], None
        elif found := BUFFER.search(line):
            device, kind, size = found.groups()
            (model if kind == "model" else context).append(Buffer(device, kind, round(float(size) * MIB)))
        elif found := FLASH.search(line):
            flash = "enabled" in found.groups()
        elif found := OFFLOADED.search(line):
            offloaded = int(found[1]), int(found[2])
    return ServerOutput((*model, *context), flash, offloaded)
