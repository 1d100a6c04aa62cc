"""What an MLX child holds as its conversation grows, and the bound that keeps it within the GPU's memory. Pure.

Bytes and tokens. The priors hold for a prefill step of 2,048 tokens and MLX's buffer cache switched off: another
configuration has no prediction until it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.kv import kv_bytes_per_layer
from engines.memory.bill import GIB, in_words
from engines.memory.grid import FLOOR

SHARE = 0.9
"""Of Metal's recommended working set that one model may take (specified)."""
FACTOR = 1.10
"""On every prediction (measured on mlx-vlm 0.6.17)."""
RUNTIME_BYTES = 1 * GIB
"""Of activations and MLX's own buffers during a prefill (measured on mlx-vlm 0.6.17)."""
PREFILL_STEP = 2048
"""Tokens of one prefill step, whose logits are held at once."""
LOGIT_BYTES = 2
"""Of one logit (f16)."""
KV_FACTOR = 3.5
"""Copies of the KV cache while it grows (measured on mlx-vlm 0.6.17)."""
MARGIN_TOKENS = 512
"""Left below the ceiling."""
WORKER_TOKENS = 8192
"""Of one text that mlx_vlm embeds or reranks at most: what is longer it cuts without a word (server/embeddings.py and
server/reranking.py, 0.7.10), at its tokenizer's own limit if that is less."""
BASE_BYTES = int(0.45 * GIB)
"""Besides the weights: what a child without a conversation holds, for the verdict before a load."""


@dataclass(frozen=True, slots=True)
class MlxBudget:
    """What a model may take. Bytes, unless a name says otherwise."""

    working_set: int | None
    """Metal's recommended working set; None: not known, and no bound is applied."""
    weights: int
    kv_per_token: int | None
    """None where the shape of the model does not tell (MLA)."""
    vocabulary: int | None
    """Entries; None where no file tells: then nothing is predicted."""
    trained: int | None
    """Tokens."""
    exact: bool
    """False where sliding layers are counted as full ones."""
    cap: int | None = None
    """The brake's cap in tokens at the load."""
    user: int | None = None
    """The window that the user set."""
    limit: int | None = None
    """Tokens that the server takes at once of any model of this kind; None: as many as the model."""
    other_children: int = 0
    """What children that stay hold or are predicted to hold."""

    @property
    def total(self) -> int | None:
        """What the model may take with everything that it grows by."""
        return None if self.working_set is None else int(SHARE * self.working_set) - self.other_children

    @property
    def prefill(self) -> int | None:
        """What a prefill takes besides its KV cache; None where the vocabulary is not known."""
        if self.vocabulary is None:
            return None
        return RUNTIME_BYTES + PREFILL_STEP * self.vocabulary * LOGIT_BYTES

    def predict(self, tokens: int) -> int | None:
        """What a conversation of ``tokens`` takes above the base; None where the shape does not tell."""
        if self.kv_per_token is None or self.prefill is None:
            return None
        return int(FACTOR * (self.prefill + KV_FACTOR * self.kv_per_token * tokens))

    def ceiling(self, base: int | None) -> int | None:
        """Tokens at which the child reaches its budget; ``base`` is what it held right after its load."""
        if self.total is None or base is None or not self.kv_per_token or self.prefill is None:
            return None
        return int(((self.total - base) / FACTOR - self.prefill) / (KV_FACTOR * self.kv_per_token)) - MARGIN_TOKENS

    def bound(self, base: int | None, cap: int | None) -> int | None:
        """The window to enforce: trained, ceiling and cap, but at least the floor; None: there is none."""
        if self.user is not None:
            return self._at_most(self.user)
        known = [value for value in (self.ceiling(base), cap) if value is not None]
        return self._at_most(max(FLOOR, min(known)) if known else None)

    def _at_most(self, tokens: int | None) -> int | None:
        """No more than the model was trained for and its server takes."""
        return min((value for value in (tokens, self.trained, self.limit) if value is not None), default=None)

    def sentence(self, base: int) -> str:
        """The sum in words."""
        assert self.working_set is not None
        assert self.prefill is not None
        terms = [(self.other_children, "of other models"), (base, "after its load")]
        less = ", ".join(f"{in_words(size)} {name}" for size, name in terms if size)
        prefill = in_words(int(FACTOR * self.prefill))
        return f"{SHARE} × {in_words(self.working_set)} of graphics memory, less {less} and {prefill} for a prefill"

    def to_json(self) -> dict[str, Any]:
        """As ``plan --json`` prints it."""
        return {
            "working_set": self.working_set,
            "share": SHARE,
            "weights": self.weights,
            "other_children": self.other_children,
            "prefill": self.prefill,
            "kv_per_token": self.kv_per_token,
            "kv_factor": KV_FACTOR,
            "factor": FACTOR,
            "exact": self.exact,
        }


def mlx_budget(
    facts: ModelFacts,
    working_set: int | None,
    *,
    cap: int | None = None,
    user: int | None = None,
    reserved: int = 0,
) -> MlxBudget:
    """The budget of a model on this machine."""
    layers = kv_bytes_per_layer(facts)
    return MlxBudget(
        working_set=working_set,
        weights=facts.weights_bytes,
        kv_per_token=None if layers is None else int(sum(layers)),
        vocabulary=facts.vocabulary,
        trained=facts.trained_window,
        exact=facts.sliding_window is None
        or (facts.trained_window is not None and facts.sliding_window >= facts.trained_window),
        cap=cap,
        user=user,
        limit=None if facts.kind is ModelKind.CHAT else WORKER_TOKENS,
        other_children=reserved,
    )
