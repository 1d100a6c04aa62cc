"""Whether a child's layers are all on the card, and whether it holds more there than its window was sized for. Pure.

Partial means that part of the KV cache is not on the card; then what the card holds says nothing of the window, and
the brake is off. A mixture of experts whose experts were moved to RAM keeps its layers and is a full offload. Layers
that share the KV cache of earlier ones count none, as everywhere here.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.artifact.facts import ModelFacts
from engines.llama_cpp.output import ServerOutput
from engines.memory.bill import MIB, in_words
from engines.memory.check import FACTOR, SLACK_BYTES
from engines.memory.cost import batch, kv_bytes
from engines.nvidia.spill import GpuUsage
from engines.nvidia.window import CONTEXT_BYTES, card_compute_bytes

TOLERANCE_BYTES = 64 * MIB
"""Taken off what is missing before it is compared with one layer's worth (start value)."""


@dataclass(frozen=True, slots=True)
class OnCard:
    """What a child holds on its card."""

    size: int
    """Bytes."""
    source: str
    """Who says so: ``NVML``, ``the GPU gauges``."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the layers went."""

    full: bool
    signal: str
    """What tells that the offload is partial; empty for a full one."""


def by_nvml(size: int | None) -> OnCard | None:
    """Linux: the memory of the process on the card."""
    return None if size is None else OnCard(size, "NVML")


def by_gauges(usage: GpuUsage | None, healthy: int) -> OnCard | None:
    """Windows: Dedicated + (Shared - healthy), so that a spill at load does not read as partial."""
    if usage is None or usage.dedicated is None:
        return None
    return OnCard(usage.dedicated + max(0, usage.shared - healthy), "the GPU gauges")


def placed(output: ServerOutput, facts: ModelFacts, window: int | None, on_card: OnCard | None) -> Placement:
    """Where the layers of a child went that serves with a window of ``window`` tokens.

    Fewer layers offloaded than there are is proof. All of them is none: a machine without a card prints it too. Then
    the bytes on the card decide; without any signal the offload is taken to be full.
    """
    if output.offloaded is not None and output.offloaded[0] < output.offloaded[1]:
        done, layers = output.offloaded
        return Placement(False, f"llama-server offloaded {done} of {layers} layers")
    floor = floor_bytes(output, facts, window)
    if on_card is None or floor is None or not facts.layers:
        return Placement(True, "")
    missing = floor - on_card.size
    if missing - TOLERANCE_BYTES <= floor // facts.layers:
        return Placement(True, "")
    held, least = in_words(on_card.size), in_words(floor)
    return Placement(False, f"by {on_card.source} it holds {held} of the card, where all layers take at least {least}")


def floor_bytes(output: ServerOutput, facts: ModelFacts, window: int | None) -> int | None:
    """What a full offload certainly holds on the card: the weights without the token embedding, which stays in RAM,
    and without the experts of a mixture, and the KV cache. Compute, context and pool are not counted.

    None where the size of the token embedding is not known.
    """
    if facts.token_embedding_bytes is None:
        return None
    weights = facts.weights_bytes - facts.token_embedding_bytes - facts.expert_bytes
    return max(0, weights) + (allocated_kv(output, facts, window, at_least=True) or 0)


def allocated_kv(output: ServerOutput, facts: ModelFacts, window: int | None, *, at_least: bool) -> int | None:
    """Bytes of the KV cache: as the server printed them, else by the header. None where neither tells.

    ``at_least``: a sliding model whose header does not say which layers slide is not counted, instead of in full.
    """
    if output.kv is not None:
        return output.kv
    if window is None or (at_least and facts.sliding_window is not None and facts.sliding_pattern is None):
        return None
    return kv_bytes(facts, window, ubatch=batch(facts, window))


def partial_sentence(model: str, placement: Placement) -> str:
    """The INFO of a partial offload."""
    return (
        f"{model} is partly on the graphics card: {placement.signal}. Its memory brake is off until its next load,"
        " which looks again"
    )


def surplus(
    model: str, facts: ModelFacts, output: ServerOutput, window: int | None, on_card: OnCard | None
) -> str | None:
    """The WARNING for a fully offloaded child that holds too much on its card, looked at once after its load.

    None where it does not, or where nothing can be said: what the encoder of a projector takes is not modelled.
    """
    if facts.projector is not None or window is None or on_card is None:
        return None
    kv, compute = allocated_kv(output, facts, window, at_least=False), card_compute_bytes(facts, window)
    if kv is None or compute is None:
        return None
    need = kv + compute + CONTEXT_BYTES + facts.weights_bytes
    if on_card.size <= need * FACTOR + SLACK_BYTES:
        return None
    return (
        f"{model} holds {in_words(on_card.size)} on the graphics card after its load by {on_card.source}, where its"
        f" window of {window:,} tokens was sized for {in_words(need)}"
    )
