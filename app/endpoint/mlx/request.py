"""All that is changed in a request before an MLX child sees it: one table, each row with its reason. Pure.

The budget is not in it: it belongs to the turn (budget.py).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from app.endpoint.errors import ApiError
from app.endpoint.mlx.asked import ChatAsked
from app.endpoint.rewrite import Body, Row
from app.host.model import Model
from engines.mlx.prefix_cache import conversation_of

FORMAT = "mlx"
"""``ModelFacts.format`` of the models that an MLX child runs."""
CONVERSATION_HEADER = "x-conversation-id"
BUDGETS = ("max_completion_tokens", "max_tokens")
"""The newer name first: it wins."""
FIELDS = frozenset(
    {
        *("messages", "tools", "tool_choice", "response_format", "seed", "temperature", "top_p", "top_k", "min_p"),
        *("top_n_sigma", "p_less", "typical_p", "logit_bias", "logprobs", "repetition_penalty"),
        *("repetition_context_size", "presence_penalty", "presence_context_size", "frequency_penalty"),
        *("frequency_context_size", "enable_thinking", "reasoning", "reasoning_effort", "thinking_budget"),
        *("thinking_start_token", "thinking_end_token", "min_pixels", "max_pixels", "resize_shape"),
    }
)
"""What a client may tell the child: the fields of its chat requests (0.7.10), but for paths and for what we do."""
UNKNOWN_CONSTRAINTS = ("grammar", "json_schema")
"""A llama-server's fields that would change the answer, and that the child ignores."""
AUDIO_URL = "data:audio/wav;base64,"
"""Constant: the child cuts at the first comma, and reads the container from the bytes."""


def refuse_paths(body: Body) -> Body:
    """No ``adapter_path``."""
    if "adapter_path" in body:
        raise _bad("adapter_path", "A request cannot name files of this machine: leave adapter_path out")
    return body


def drop_nulls(body: Body) -> Body:
    """A field that is null is a field left out."""
    return {name: value for name, value in body.items() if value is not None}


def refuse_several(body: Body) -> Body:
    """One answer only."""
    if body.get("n", 1) != 1:
        raise _bad("n", "This model gives one answer to a request. Leave n out, and ask several times", "not_supported")
    return body


def refuse_nothing(body: Body) -> Body:
    """A budget of at least one token."""
    for name in BUDGETS:
        if body.get(name) == 0:
            raise _bad(name, f"This model gives answers of at least one token. Set {name} to 1 or more")
    return body


def refuse_constraints(body: Body) -> Body:
    """No ``grammar`` and no ``json_schema`` of its own."""
    for name in UNKNOWN_CONSTRAINTS:
        if name in body:
            why = f"This model's server takes no {name}. Send the schema in response_format instead"
            raise _bad(name, why, "not_supported")
    return body


def refuse_alternatives(body: Body) -> Body:
    """No ``top_logprobs``."""
    if body.get("top_logprobs", 0) != 0:
        why = "This model's server names no other tokens than the chosen one. Leave top_logprobs out"
        raise _bad("top_logprobs", why, "not_supported")
    return body


def draw_a_seed(body: Body) -> Body:
    """A negative ``seed`` is none."""
    seed = body.get("seed")
    if isinstance(seed, int) and seed < 0:
        del body["seed"]
    return body


def known_fields(body: Body) -> Body:
    """What a client may tell the child, and nothing else."""
    return {name: value for name, value in body.items() if name in FIELDS}


def always_stream(body: Body) -> Body:
    """A stream that counts its tokens."""
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def never_compact(body: Body) -> Body:
    """``context_management: []``."""
    return {**body, "context_management": []}


def rename_repeat_penalty(body: Body) -> Body:
    """``repeat_penalty`` to ``repetition_penalty``."""
    value = body.pop("repeat_penalty", None)
    return body if value is None else {"repetition_penalty": value, **body}


def lift_enable_thinking(body: Body) -> Body:
    """``chat_template_kwargs.enable_thinking`` to ``enable_thinking``."""
    given = body.get("chat_template_kwargs")
    wanted = given.get("enable_thinking") if isinstance(given, Mapping) else None
    return body if not isinstance(wanted, bool) else {"enable_thinking": wanted, **body}


def schema_of_object(body: Body) -> Body:
    """``json_object`` with a schema to ``json_schema``."""
    wanted = body.get("response_format")
    if (
        isinstance(wanted, Mapping)
        and wanted.get("type") == "json_object"
        and isinstance(wanted.get("schema"), Mapping)
    ):
        schema = {"name": "answer", "schema": wanted["schema"]}
        return {**body, "response_format": {"type": "json_schema", "json_schema": schema}}
    return body


def biases_by_token(body: Body) -> Body:
    """``logit_bias`` to an object of numbers by token number."""
    given = body.get("logit_bias")
    if given is None:
        return body
    try:
        pairs = given.items() if isinstance(given, Mapping) else [(token, bias) for token, bias in given]
        return {**body, "logit_bias": {str(int(token)): float(bias) for token, bias in pairs}}
    except (TypeError, ValueError):
        why = "It must hold numbers by token number: this model's server knows no other form"
        raise _bad("logit_bias", why) from None


def media_in_the_request(body: Body) -> Body:
    """Images as ``{"url": "data:..."}``, audio as a data URL whose base64 is checked."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    return {**body, "messages": [_with_media(number, message) for number, message in enumerate(messages)]}


TABLE = (
    Row("nulls", "it answers 422 to a null where it has a default; to OpenAI it is a field left out", drop_nulls),
    Row("adapter_path", "it opens that path, or fetches it, and reloads the model", refuse_paths),
    Row("n", "it ignores n", refuse_several),
    Row("budget of 0", "where it streams it takes 0 for 2048, past the window (seen on 0.7.10)", refuse_nothing),
    Row("grammar, json_schema", "it ignores them", refuse_constraints),
    Row("top_logprobs", "it answers with empty lists: it is started without alternatives", refuse_alternatives),
    Row("seed", "a negative one means a random one to llama-server, and is taken as it is here", draw_a_seed),
    Row("repeat_penalty", "it calls it repetition_penalty", rename_repeat_penalty),
    Row("chat_template_kwargs", "it takes enable_thinking at the top, and no other argument", lift_enable_thinking),
    Row("response_format schema", "it ignores a schema beside json_object", schema_of_object),
    Row("logit_bias", "it takes an object only, and fails with 500 on a list", biases_by_token),
    Row("media", "it opens as a path what is no image URL or no base64", media_in_the_request),
    Row(
        "other fields",
        "we do stop and the budget; a field that it may learn to read must not name a file",
        known_fields,
    ),
    Row("stream", "a dropped request is cancelled only when it streams", always_stream),
    Row("context_management", "without it a long history is summarised and a budget clamped, silently", never_compact),
)
"""Not in it, since mlx_vlm takes them as they are: the developer role (it joins it to the system prompt),
``tool_choice`` in all its forms (a named tool by leaving out the others), ``response_format`` with ``json_object`` or
``json_schema``."""


def child_name(model: Model) -> str:
    """What the child calls the model: the path of its spawn. Any other name makes it unload what it has."""
    return str(model.facts.files[0].parent)


def rewrite(body: Mapping[str, Any], model: Model, seed: int) -> Body:
    """The body for the child, without a budget. Raises ``ApiError``.

    ``seed`` is one to use where the client names none: mlx_vlm's own is always 0, and a chat asked again would get the
    same answer at any temperature.
    """
    changed = dict(body)
    for row in TABLE:
        changed = row.change(changed)
    return {"seed": seed, **changed, "model": child_name(model)}


def chat_asked(body: Mapping[str, Any], header_id: str | None) -> ChatAsked:
    """What we have to do ourselves for this request. ``header_id`` is its ``x-conversation-id``."""
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    budget = next((body[name] for name in BUDGETS if body.get(name) is not None), None)
    options = body.get("stream_options")
    return ChatAsked(
        conversation=conversation_of(body, header_id),
        budget=None if budget == -1 else budget,  # llama-server's way to say: until the window is full
        stops=tuple(text for text in stops if text),
        usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        tools=bool(body.get("tools")) and body.get("tool_choice") != "none",
    )


def with_budget(body: bytes, tokens: int) -> bytes:
    """The JSON of ``rewrite`` with a budget, without parsing a long chat again."""
    return b'{"max_tokens": ' + json.dumps(tokens).encode() + b", " + body.lstrip()[1:]


def in_our_words(text: str, model: Model) -> str:
    """A text of the child without the path that it calls the model by."""
    folder = Path(child_name(model))
    return text.replace(str(folder), model.id).replace(folder.as_posix(), model.id)


def no_completions(model: Model) -> ApiError:
    """What a request to ``/v1/completions`` is told."""
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "not_supported",
        f"{model.name} is an MLX model: its server answers chats only. Use /v1/chat/completions.",
        "model",
    )


def _with_media(number: int, message: Any) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    parts = [_checked(part, f"messages[{number}].content[{index}]") for index, part in enumerate(content)]
    return {**message, "content": parts}


def _checked(part: Any, place: str) -> Any:
    match part:
        case {"type": "image_url", "image_url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "input_audio", "input_audio": {"data": str(data), **rest}}:
            try:
                encoded = base64.b64encode(base64.b64decode(data, validate=True)).decode()
            except (binascii.Error, ValueError):
                raise _bad(place, "The audio in input_audio.data is not base64") from None
            return {"type": "input_audio", "input_audio": {**rest, "data": AUDIO_URL + encoded}}
    return part


def _bad(param: str, sentence: str, code: str = "invalid_request") -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, code, f"{sentence}.", param)
