"""What a request may look like: the fields we know are checked, all others travel on as they are."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from app.endpoint.errors import ApiError

Number = StrictFloat | StrictInt
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
MAX_STOPS = 64
"""Stop sequences of one request; OpenAI takes 4, llama-server any number."""


Kind = TypeVar("Kind", bound="Request")


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="allow")
    role: Role
    content: StrictStr | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Request(BaseModel):
    """What all requests share."""

    model_config = ConfigDict(extra="allow")
    model: StrictStr | None = None


class Common(Request):
    """What chats and completions share."""

    stream: StrictBool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: StrictInt | None = Field(None, ge=-1)
    temperature: Number | None = Field(None, ge=0)
    top_p: Number | None = None
    top_k: StrictInt | None = None
    min_p: Number | None = None
    n: StrictInt | None = Field(None, ge=1)
    seed: StrictInt | None = None
    stop: StrictStr | Annotated[list[StrictStr], Field(max_length=MAX_STOPS)] | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    user: StrictStr | None = None


class ChatRequest(Common):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: StrictInt | None = Field(None, ge=-1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


class CompletionRequest(Common):
    """POST /v1/completions."""

    prompt: StrictStr | list[StrictStr] | list[StrictInt]
    suffix: StrictStr | None = None


class EmbeddingRequest(Request):
    """POST /v1/embeddings."""

    input: StrictStr | list[StrictStr] | list[StrictInt] | list[list[StrictInt]]
    encoding_format: Literal["float", "base64"] | None = None


class RerankRequest(Request):
    """POST /v1/rerank."""

    query: StrictStr
    documents: list[StrictStr] = Field(min_length=1)
    top_n: StrictInt | None = Field(None, ge=1)


def check(kind: type[Kind], body: Mapping[str, Any]) -> Kind:
    """Check a body. Raises ``ApiError`` 400 that names the field. Pure."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = place_of(first["loc"])
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid_request", f"{place}: {first['msg']}.", param=place) from None


def place_of(location: tuple[int | str, ...]) -> str:
    """``("messages", 0, "role")`` as ``messages[0].role``; the names of union branches are left out."""
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part.replace("_", "").islower() and part.isidentifier() and part not in {"str", "int", "float", "bool"}:
            place += f".{part}" if place else part
    return place or "body"


def check_media(messages: list[Message], modalities: frozenset[str]) -> None:
    """Refuse what the model cannot see, and what would make a server fetch: only ``data:`` travels. Pure.

    Some servers open local paths and addresses that a message names; that would be a reach into the machine.
    """
    for number, message in enumerate(messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            _check_part(part, f"messages[{number}].content[{index}]", modalities)


def _check_part(part: Mapping[str, Any], place: str, modalities: frozenset[str]) -> None:
    kind = part.get("type")
    match kind:
        case "text":
            if not isinstance(part.get("text"), str):
                raise _bad(place, "a text part needs a text")
            return
        case "image_url":
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, Mapping) else image
            if not isinstance(url, str) or not url.startswith("data:image/"):
                raise _bad(place, "an image must be sent as a data: URL (data:image/png;base64,...), not as an address")
            needed = "image"
        case "input_audio":
            audio = part.get("input_audio")
            if not isinstance(audio, Mapping) or not isinstance(audio.get("data"), str) or ":" in audio["data"][:64]:
                raise _bad(place, "audio must be sent as base64 in input_audio.data")
            needed = "audio"
        case _:
            raise _bad(place, "its type is not one of text, image_url, input_audio")
    if needed not in modalities:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "media_not_supported",
            f"This model does not take {needed} input. Choose one with a projector, or send text only.",
            param=place,
        )


def _bad(place: str, why: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid_request", f"{place}: {why}.", param=place)
