"""Does a child hold more than its window was sized for? Looked at once, right after the load. Pure."""

from __future__ import annotations

from fractions import Fraction

from engines.artifact.facts import ModelFacts
from engines.memory.bill import MIB, in_words
from engines.memory.free_memory import need_bytes

FACTOR = Fraction(11, 10)
SLACK_BYTES = 256 * MIB


def surplus(model: str, facts: ModelFacts, window: int | None, held: int | None, copied: int) -> str | None:
    """The sentence for a child that holds too much; None where it does not, or where nothing can be said.

    ``held`` is its anonymous memory in bytes, ``window`` the allocated one in tokens, ``copied`` the server's copy of
    the weights where it is known to be larger than the file. Nothing is said of a model with a projector: what its
    encoder takes is not modelled.
    """
    if facts.projector is not None or window is None or held is None:
        return None
    need = need_bytes(facts, window, max(copied, facts.weights_bytes))
    if need is None or held <= need * FACTOR + SLACK_BYTES:
        return None
    return (
        f"{model} holds {in_words(held)} after its load, where its window of {window:,} tokens was sized for"
        f" {in_words(need)} at most"
    )
