"""What a llama-server says it allocated: ``/props``, held against the plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import httpx

from engines.engine import ChildFacts
from engines.memory.grid import padded
from engines.plan import LaunchPlan

log = logging.getLogger(__name__)


def facts_from(props: Mapping[str, Any], plan: LaunchPlan) -> ChildFacts:
    """Read ``/props``; what is not there keeps the plan's value. Pure."""
    settings = props.get("default_generation_settings")
    allocated = settings.get("n_ctx") if isinstance(settings, Mapping) else None
    slots = props.get("total_slots")
    modalities = props.get("modalities")
    caps = props.get("chat_template_caps")
    build = props.get("build_info")
    return ChildFacts(
        allocated_window=allocated if isinstance(allocated, int) else plan.window.planned,
        slots=slots if isinstance(slots, int) and slots > 0 else plan.slots,
        modalities=frozenset(m for m, has in modalities.items() if has)
        if isinstance(modalities, Mapping)
        else frozenset(),
        template={str(k): bool(v) for k, v in caps.items()} if isinstance(caps, Mapping) else {},
        build=build if isinstance(build, str) else None,
    )


def mismatch(facts: ChildFacts, plan: LaunchPlan) -> str | None:
    """The sentence for a window other than the one passed, compared padded; None when they agree. Pure."""
    passed, got = plan.window.planned, facts.allocated_window
    if passed is None or got is None:
        return None
    expected = {padded(passed)}
    if plan.window.trained is not None:
        expected.add(min(padded(passed), plan.window.trained))
    if got in expected or padded(got) in expected:
        return None
    return f"{plan.model} was given a window of {passed:,} tokens and reports {got:,}"


async def read_properties(client: httpx.AsyncClient, plan: LaunchPlan) -> ChildFacts:
    """Read back. A server that does not tell still serves: then the plan's values stand, with one WARNING."""
    try:
        answer = await client.get("/props")
        answer.raise_for_status()
        props = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        log.warning("%s does not tell its properties (%s)", plan.model, type(error).__name__)
        return facts_from({}, plan)
    facts = facts_from(props if isinstance(props, dict) else {}, plan)
    sentence = mismatch(facts, plan)
    if sentence is not None:
        log.warning(sentence)
    return facts
