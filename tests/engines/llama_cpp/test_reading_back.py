"""What a llama-server says of itself, and how it is held against the plan."""

from __future__ import annotations

import pytest

from engines.engine import ChildFacts
from engines.llama_cpp.lifeline import load_progress
from engines.llama_cpp.properties import facts_from, mismatch
from engines.plan import LaunchPlan, Memory, Window


def plan(planned: int | None, trained: int | None = 40960) -> LaunchPlan:
    return LaunchPlan("tiny", "cpu", (), {}, Window(planned, trained, "model", ""), Memory(None))


def state(state: str, **payload: object) -> str:
    import json

    return "cmd_child_to_router:state:" + json.dumps({"state": state, "payload": payload})


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (state("loading", stages=["text_model"], current="text_model", value=0.42), 0.42),
        (state("loading", stages=["text_model", "mmproj"], current="mmproj", value=0.5), 0.75),
        (state("ready", id="x"), 1.0),
        ("srv  llama_server: loading model", None),
        ("cmd_child_to_router:state:{broken", None),
        ("cmd_child_to_router:hello", None),
        (state("loading", stages=[], current="x", value=0.5), None),
        (state("loading"), None),
    ],
)
def test_load_progress(line: str, value: float | None) -> None:
    assert load_progress(line) == value


def test_properties_are_read() -> None:
    props = {
        "default_generation_settings": {"n_ctx": 4096},
        "total_slots": 1,
        "modalities": {"vision": True, "audio": False},
        "chat_template_caps": {"supports_tools": True},
        "build_info": "b1-7e4c0a9",
    }
    facts = facts_from(props, plan(4096))
    assert facts == ChildFacts(4096, 1, frozenset({"vision"}), {"supports_tools": True}, "b1-7e4c0a9")


@pytest.mark.parametrize("props", [{}, {"default_generation_settings": None}, {"modalities": [], "total_slots": "x"}])
def test_properties_that_are_missing_leave_the_plan_standing(props: dict[str, object]) -> None:
    assert facts_from(props, plan(8192)) == ChildFacts(8192, 1)


@pytest.mark.parametrize(
    ("passed", "reported", "agrees"),
    [
        (8192, 8192, True),
        (8000, 8192, True),
        (8000, 8000, True),
        (40960, 40960, True),
        (40000, 40192, True),
        (8192, 4096, False),
        (None, 4096, True),
    ],
)
def test_windows_are_compared_padded(passed: int | None, reported: int, agrees: bool) -> None:
    assert (mismatch(ChildFacts(reported, 1), plan(passed)) is None) is agrees


def test_a_trained_window_off_the_grid_is_served_as_it_is() -> None:
    assert mismatch(ChildFacts(1000, 1), plan(1000, trained=1000)) is None
