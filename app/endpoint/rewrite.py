"""All that is changed in a request before a llama-server sees it: one table, each row with its reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from app.endpoint.errors import ApiError

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One change."""

    name: str
    reason: str
    change: Callable[[Body], Body]


def rename_repetition_penalty(body: Body) -> Body:
    """``repetition_penalty`` to ``repeat_penalty``."""
    value = body.pop("repetition_penalty", None)
    if value is not None:
        body.setdefault("repeat_penalty", value)
    return body


def rename_max_completion_tokens(body: Body) -> Body:
    """``max_completion_tokens`` to ``max_tokens``."""
    value = body.pop("max_completion_tokens", None)
    if value is not None:
        body["max_tokens"] = value
    return body


def developer_is_system(body: Body) -> Body:
    """Role ``developer`` to ``system``."""
    messages = body.get("messages")
    if isinstance(messages, list):
        body["messages"] = [{**m, "role": "system"} if _is_developer(m) else m for m in messages]
    return body


def enforce_named_tool(body: Body) -> Body:
    """A ``tool_choice`` that names a tool to that tool alone, required."""
    choice = body.get("tool_choice")
    if not isinstance(choice, Mapping):
        return body
    name, given = _function_name(choice), body.get("tools")
    tools = [tool for tool in given if _function_name(tool) == name] if isinstance(given, list) else []
    if name is None or not tools:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "invalid_request",
            "tool_choice names no function that tools holds. Name one of them, or send auto, none or required.",
            "tool_choice",
        )
    return {**body, "tools": tools, "tool_choice": "required"}


def enforce_json_object(body: Body) -> Body:
    """``json_object`` to a schema that any object fits."""
    wanted = body.get("response_format")
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_object" and "schema" not in wanted:
        body["response_format"] = {"type": "json_object", "schema": {"type": "object"}}
    return body


def _is_developer(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "developer"


def _function_name(tool: object) -> str | None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


TABLE = (
    Row("repetition_penalty", "llama-server calls it repeat_penalty", rename_repetition_penalty),
    Row("max_completion_tokens", "older servers know max_tokens only", rename_max_completion_tokens),
    Row("developer role", "chat templates know system only", developer_is_system),
    Row("tool_choice object", "llama-server ignores it (seen on b10434)", enforce_named_tool),
    Row("response_format json_object", "not enforced without a schema (seen on b10434)", enforce_json_object),
)


def rewrite(body: Mapping[str, Any], model: str) -> Body:
    """The body for the child; ``model`` is the child's own name. Raises ``ApiError``."""
    changed = {**body, "model": model}
    for row in TABLE:
        changed = row.change(changed)
    return changed
