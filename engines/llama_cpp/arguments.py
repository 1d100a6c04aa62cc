"""The command line of a llama-server, part by part, each with its reason."""

from __future__ import annotations

from engines.artifact.facts import ModelFacts, ModelKind

NO_IDLE_SLEEP = ("--sleep-idle-seconds", "-1")
"""First and once: a server that sleeps cannot be fenced by readiness probes."""
ONE_CONVERSATION = ("-np", "1", "--cache-ram", "0", "--no-cache-idle-slots", "--no-slots")
"""One conversation's KV at a time: by default a RAM cache of past prompts may grow to 8 GiB that nothing counts."""
REUSE = ("--cache-reuse", "256")
"""A prompt with its middle cut out re-uses 1,191 of 1,192 tokens instead of 597 (measured)."""
CHAT_BATCH = ("-b", "512")
"""A client that leaves during a long prompt frees the slot in 0.3 s instead of 2-15 s; speed within noise."""
VERBOSITY = ("-lv", "4")
"""Prints the lines about KV, compute, Flash Attention and offload that are read; no prompt text."""


def always(alias: str) -> tuple[str, ...]:
    """What every child gets behind its engine's own arguments."""
    return (
        *ONE_CONVERSATION,
        "--no-webui",
        *REUSE,
        "--host",
        "127.0.0.1",
        "--alias",
        alias,
        "--jinja",
        *VERBOSITY,
    )


def purpose(facts: ModelFacts, window: int | None) -> tuple[str, ...]:
    """What the model is for. Embedding inputs over 512 tokens are a 500 unless the batch holds the whole window."""
    batch = ("-b", str(window), "-ub", str(window)) if window is not None else ()
    match facts.kind:
        case ModelKind.EMBEDDING:
            return ("--embeddings", *batch)
        case ModelKind.RERANK:
            return ("--reranking", *batch)
        case ModelKind.CHAT:
            projector = ("--mmproj", str(facts.projector)) if facts.projector is not None else ()
            return (*CHAT_BATCH, *projector)


def threads(physical_cores: int) -> int:
    """Physical cores, one left to the desktop above 4 (start value)."""
    return physical_cores - 1 if physical_cores > 4 else max(1, physical_cores)
