"""Each row of the rewrite table, and that a request is never changed in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from app.endpoint.errors import ApiError
from app.endpoint.rewrite import TABLE, rewrite

SYSTEM, DEVELOPER, USER = ({"role": role, "content": role} for role in ("system", "developer", "user"))
F = {"type": "function", "function": {"name": "f", "parameters": {}}}
G = {"type": "function", "function": {"name": "g"}}
CHOOSE_F = {"type": "function", "function": {"name": "f"}}
ANY_OBJECT = {"type": "json_object", "schema": {"type": "object"}}
OWN_SCHEMA = {"type": "json_object", "schema": {"type": "array"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"schema": {}}}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        # the name is the child's, always
        ({}, {}),
        ({"model": "alias"}, {}),
        # repetition_penalty
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, {"repeat_penalty": 1.2}),
        ({"repetition_penalty": None}, {}),
        ({"repetition_penalty": 0}, {"repeat_penalty": 0}),
        # max_completion_tokens
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 9}, {"max_tokens": 5}),
        ({"max_completion_tokens": None, "max_tokens": 9}, {"max_tokens": 9}),
        ({"max_completion_tokens": 0}, {"max_tokens": 0}),
        # developer
        ({"messages": [DEVELOPER, USER]}, {"messages": [{**DEVELOPER, "role": "system"}, USER]}),
        ({"messages": [SYSTEM, USER]}, {"messages": [SYSTEM, USER]}),
        ({"messages": ["developer", None]}, {"messages": ["developer", None]}),
        ({"messages": "developer"}, {"messages": "developer"}),
        # tool_choice
        ({"tool_choice": CHOOSE_F, "tools": [F, G]}, {"tool_choice": "required", "tools": [F]}),
        ({"tool_choice": CHOOSE_F, "tools": [5, {"function": "f"}, F]}, {"tool_choice": "required", "tools": [F]}),
        ({"tool_choice": "auto", "tools": [F, G]}, {"tool_choice": "auto", "tools": [F, G]}),
        ({"tool_choice": None}, {"tool_choice": None}),
        # response_format
        ({"response_format": {"type": "json_object"}}, {"response_format": ANY_OBJECT}),
        ({"response_format": OWN_SCHEMA}, {"response_format": OWN_SCHEMA}),
        ({"response_format": JSON_SCHEMA}, {"response_format": JSON_SCHEMA}),
        ({"response_format": {"type": "text"}}, {"response_format": {"type": "text"}}),
        ({"response_format": "json_object"}, {"response_format": "json_object"}),
        # everything else
        ({"temperature": 0, "whatever": [1, {"x": None}]}, {"temperature": 0, "whatever": [1, {"x": None}]}),
    ],
)
def test_a_row(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    before = copy.deepcopy(given)
    assert rewrite(given, "child") == {**wanted, "model": "child"}
    assert given == before


@pytest.mark.parametrize(
    "body",
    [
        {"tool_choice": CHOOSE_F},
        {"tool_choice": CHOOSE_F, "tools": []},
        {"tool_choice": CHOOSE_F, "tools": [G]},
        {"tool_choice": CHOOSE_F, "tools": None},
        {"tool_choice": CHOOSE_F, "tools": 5},
        {"tool_choice": CHOOSE_F, "tools": "f"},
        {"tool_choice": CHOOSE_F, "tools": {"function": {"name": "f"}}},
        {"tool_choice": CHOOSE_F, "tools": [{"type": "function", "function": "f"}]},
        {"tool_choice": {}, "tools": [F]},
        {"tool_choice": {"function": {"name": None}}, "tools": [{"function": {}}]},
        {"tool_choice": {"function": {"name": ["f"]}}, "tools": [{"function": {"name": ["f"]}}]},
        {"tool_choice": {"function": "f"}, "tools": [F]},
    ],
)
def test_a_tool_choice_that_names_none_of_the_tools_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        rewrite({"messages": [USER], **body}, "child")
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


def test_every_row_has_its_name_and_reason() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE) == 5
    assert all(row.reason for row in TABLE)
