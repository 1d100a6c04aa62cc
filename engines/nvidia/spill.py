"""VRAM that Windows serves from RAM, and what a healthy child holds there anyway. Pure; memory is bytes.

Under WDDM an allocation that does not fit the card comes from RAM (the driver's "CUDA Sysmem Fallback Policy", on
since 536.40): the child goes on, very slowly. Its Shared Usage above what it held right after its load is the spill.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from engines.llama_cpp.output import ServerOutput
from engines.memory.bill import GIB, KIB, MIB, in_words
from engines.memory.brake.llama_law import SPILL_BYTES, spill_evidence
from engines.memory.pressure.levels import Level

HEALTHY_BYTES = 128 * MIB
"""Pinned host buffers of a child without a spill, besides what grows with its window (78 to 99 MiB measured)."""
HEALTHY_WITH_FLASH = 1 * KIB
"""What they grow by for each token of the window with Flash Attention (11.5 MiB at 8,192 tokens measured)."""
HEALTHY_WITHOUT_FLASH = 2 * KIB
"""As above without Flash Attention (20 MiB at 8,192 tokens measured)."""
CRITICAL_BYTES = 1 * GIB
"""A spill from here on is critical (start value)."""
FORCED = {"vram-warning": SPILL_BYTES, "vram-critical": CRITICAL_BYTES}
"""The QA variable's values about VRAM: the spill each one forces."""
INSTANCE = re.compile(r"pid_(\d+)_luid_(0x[0-9a-f]+_0x[0-9a-f]+)_phys_\d+", re.IGNORECASE | re.ASCII)
"""``pid_8312_luid_0x00000000_0x0000D3E8_phys_0``: a process, an adapter, and one of its linked cards."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """What one process holds by the gauges of one adapter."""

    dedicated: int | None
    """On the card; None where only the shared part is known."""
    shared: int
    """In RAM, for the card."""


@dataclass(frozen=True, slots=True)
class ChildVram:
    """What the samples of one child are held against; stamped at its load."""

    pid: int
    healthy: int
    """Shared Usage of a child like this one without a spill."""
    baseline: int
    """Its Shared Usage right after its load, at most ``healthy``: the spill counts from here."""
    loaded: GpuUsage | None
    """The reading right after its load; None where the gauges could not be read."""


@dataclass(frozen=True, slots=True)
class SpillReading:
    """One look at a child's VRAM. None is what could not be read; a level that is None makes no sample."""

    level: Level | None
    spill: int | None
    detail: str
    """The raw values, or why there are none, for the log."""

    @property
    def evidence(self) -> bool | None:
        """Whether the spill is evidence by itself. A small stable one never is."""
        return None if self.spill is None else spill_evidence(self.spill)


def healthy_bytes(window: int, *, flash: bool) -> int:
    """Shared Usage of a child with a window of ``window`` tokens that spills nothing."""
    return HEALTHY_BYTES + window * (HEALTHY_WITH_FLASH if flash else HEALTHY_WITHOUT_FLASH)


def flash_runs(output: ServerOutput, *, proven: bool) -> bool:
    """Whether Flash Attention runs: the last line that the child printed about it, else the proof for the model."""
    return proven if output.flash_attention is None else output.flash_attention


def stamped(pid: int, healthy: int, usage: GpuUsage | None) -> ChildVram:
    """A child right after its load. Without a reading its baseline is the healthy level, never 0."""
    return ChildVram(pid, healthy, healthy if usage is None else min(usage.shared, healthy), usage)


def spilled(usage: GpuUsage, child: ChildVram) -> int:
    """What a child holds in RAM above its baseline."""
    return max(0, usage.shared - child.baseline)


def level_of(spill: int) -> Level:
    """How bad a spill is."""
    if spill >= CRITICAL_BYTES:
        return Level.CRITICAL
    return Level.WARNING if spill >= SPILL_BYTES else Level.CALM


def read(usage: GpuUsage | None, child: ChildVram, why: str) -> SpillReading:
    """From the gauges to a reading; ``why`` they cannot be read."""
    if usage is None:
        return SpillReading(None, None, why)
    spill = spilled(usage, child)
    on_card = "unreadable" if usage.dedicated is None else f"{usage.dedicated // MIB:,} MiB"
    detail = (
        f"shared {usage.shared // MIB:,} MiB, {spill // MIB:,} MiB above the baseline of {child.baseline // MIB:,} MiB;"
        f" dedicated {on_card}"
    )
    return SpillReading(level_of(spill), spill, detail)


def forced(usage: GpuUsage | None, healthy: int, spill: int) -> GpuUsage:
    """The reading with a Shared Usage of exactly ``spill`` above the healthy level; what is on the card stays true."""
    shared = healthy + spill
    return GpuUsage(None, shared) if usage is None else replace(usage, shared=shared)


def of_process(pid: int, dedicated: Mapping[str, float], shared: Mapping[str, float]) -> GpuUsage | None:
    """The usage of one process on the adapter that holds most of its dedicated memory (the discrete card of a laptop).

    ``dedicated`` and ``shared`` are the gauges by instance, of all processes. None where the process has none.
    """
    on_card, in_ram = _by_adapter(pid, dedicated.items()), _by_adapter(pid, shared.items())
    adapter = max(on_card, key=lambda luid: on_card[luid], default=None)
    if adapter is None or adapter not in in_ram:
        return None
    return GpuUsage(on_card[adapter], in_ram[adapter])


def load_sentence(model: str, child: ChildVram) -> str | None:
    """For a child that spills already at its load: a WARNING, after a brake's respawn an INFO. None: it does not."""
    if child.loaded is None or child.loaded.shared <= child.healthy:
        return None
    return (
        f"{model} holds {in_words(child.loaded.shared)} of its graphics memory in RAM after its load, where"
        f" {in_words(child.healthy)} is healthy: the card is too full, and the model will be slow"
    )


def unreadable_sentence(model: str, why: str) -> str:
    """The WARNING of a gauge that cannot be read, said once in each such episode."""
    return f"GPU spill gauge unreadable for {model} ({why}); the memory brake is off while it stays unreadable"


def _by_adapter(pid: int, gauge: Iterable[tuple[str, float]]) -> dict[str, int]:
    """Bytes of one process by the luid of the adapter; linked cards of one adapter are added up."""
    found: dict[str, int] = {}
    for instance, value in gauge:
        parts = INSTANCE.match(instance)
        if parts is not None and int(parts[1]) == pid:
            luid = parts[2].lower()
            found[luid] = found.get(luid, 0) + max(0, int(value))
    return found
