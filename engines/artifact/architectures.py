"""What llama.cpp knows about an architecture and a header does not say. Pure tables.

Source: llama.cpp b11434: ``src/models/*.cpp`` (``load_arch_hparams``), ``src/llama-model.cpp`` (``load_swa_pattern``,
``create_memory``) and ``src/llama-hparams.cpp`` (``set_swa_pattern``). An architecture that is not here has full
attention in every layer, as far as its header does not say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

ENCODERS = frozenset(
    {
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "gemma-embedding",
        "t5encoder",
        "llama-embed",
    }
)
"""They make embeddings, whatever the header says about pooling."""

WITHOUT_KV_CACHE = frozenset(
    {
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "gemma-embedding",
        "dream",
        "llada",
        "llada-moe",
        "rnd1",
        "clef",
        "wavtokenizer-dec",
    }
)
"""``create_memory`` gives them no cache at all."""

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""No layer has a KV cache: the state has the same size for any window."""

FULL_ATTENTION_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
"""Hybrids whose header gives KV heads to the recurrent layers too: only each n-th layer attends. The default of
``{arch}.full_attention_interval``; other hybrids declare 0 KV heads for their recurrent layers."""

KV_LAYERS_FROM_START = {"gemma3n": 20}
"""Layers that own a KV cache; the later ones reuse it. The default where ``shared_kv_layers`` is absent."""

ALIBI = frozenset({"bloom", "refact", "jina-bert-v2"})
"""They bias attention by distance although the header has no ``max_alibi_bias``."""

BAICHUAN_ALIBI_LAYERS = 40
"""The 13B of ``baichuan`` has ALiBi, the 7B (32 layers) has not."""


@dataclass(frozen=True, slots=True)
class SlidingRule:
    """Which layers of an architecture slide, where the header does not list them."""

    period: int
    """Of so many layers one has full attention; 0: every layer slides."""
    dense_first: bool = False
    """The full layer is the first of its period, not the last."""
    default_window: int | None = None
    """Tokens, where the header has no window."""
    fixed_window: int | None = None
    """Tokens, whatever the header says."""
    only_layers: int | None = None
    """The rule holds for the model with so many layers alone; the others do not slide."""

    def slides(self, layer: int, period: int) -> bool:
        """Whether a layer (from 0) slides (``llama_hparams::set_swa_pattern``)."""
        if period == 0:
            return True
        return layer % period != 0 if self.dense_first else layer % period < period - 1


SLIDING: dict[str, SlidingRule] = {
    "afmoe": SlidingRule(4),
    "cohere2": SlidingRule(4),
    "cohere2moe": SlidingRule(4, dense_first=True),
    "exaone-moe": SlidingRule(4, default_window=128),
    "exaone4": SlidingRule(4, default_window=4096, only_layers=64),
    "gemma-embedding": SlidingRule(6),
    "gemma2": SlidingRule(2, default_window=4096),
    "gemma3": SlidingRule(6),
    "gemma3n": SlidingRule(5),
    "gpt-oss": SlidingRule(2),
    "laguna": SlidingRule(4, dense_first=True),
    "lfm2": SlidingRule(0),
    "llama4": SlidingRule(4, default_window=8192, fixed_window=8192),
    "mellum": SlidingRule(4),
    "modern-bert": SlidingRule(3, dense_first=True),
    "muse-glimmer": SlidingRule(4),
    "olmo2": SlidingRule(4),
    "plamo3": SlidingRule(8),
    "smallthinker": SlidingRule(4, dense_first=True, fixed_window=4096),
}

WITHOUT_SLIDING = frozenset({"phi3"})
"""Their headers declare a window that llama.cpp does not use."""


def sliding(
    architecture: str, layers: int, window: int | None, pattern: tuple[int | float | bool, ...] | int | None
) -> tuple[int | None, tuple[bool, ...] | None]:
    """The window in tokens and, for each layer, whether it slides; ``None`` where it is not known.

    ``window`` and ``pattern`` are what the header says: the pattern as one truth value a layer, or as a period.
    A list that is too short leaves the later layers full, as llama.cpp does.
    """
    rule = SLIDING.get(architecture)
    if architecture in WITHOUT_SLIDING:
        return None, None
    if rule is not None:
        if rule.only_layers is not None and layers != rule.only_layers:
            return None, None
        if window is None:
            window = rule.default_window
        elif window > 0 and rule.fixed_window is not None:
            window = rule.fixed_window
    if not window:
        return None, None
    if isinstance(pattern, tuple):
        slides = [bool(value) for value in pattern[:layers]]
        return window, tuple(slides + [False] * (layers - len(slides)))
    if rule is None:
        return window, None
    period = rule.period if pattern is None else pattern
    return window, tuple(rule.slides(layer, period) for layer in range(layers))


def recurrent(architecture: str, layers: int, interval: int | None) -> tuple[bool, ...]:
    """For each layer whether it is recurrent, as far as the architecture (not the count of KV heads) decides it.

    ``interval`` is what the header says: each so-many-th layer attends.
    """
    if architecture in RECURRENT:
        return (True,) * layers
    every = FULL_ATTENTION_EVERY.get(architecture)
    if every is None:
        return (False,) * layers
    every = interval or every
    return tuple((layer + 1) % every != 0 for layer in range(layers))


def has_alibi(architecture: str, layers: int | None) -> bool:
    """Whether the architecture has ALiBi without saying so in its header."""
    return architecture in ALIBI or (architecture == "baichuan" and layers == BAICHUAN_ALIBI_LAYERS)
