"""Every error in OpenAI's shape, and a llama-server's refusals put right."""

from __future__ import annotations

import json

import pytest

from app.endpoint import errors
from app.endpoint.errors import ApiError
from app.host.refused import Unserved
from app.library.names import ModelBroken, ModelNotFound


@pytest.mark.parametrize(
    ("status", "kind", "headers"),
    [
        (400, "invalid_request_error", {}),
        (401, "permission_error", {"www-authenticate": "Bearer"}),
        (403, "permission_error", {}),
        (404, "invalid_request_error", {}),
        (409, "invalid_request_error", {}),
        (429, "invalid_request_error", {}),
        (500, "server_error", {}),
        (502, "server_error", {}),
        (503, "server_error", {"retry-after": "5"}),
        (504, "server_error", {}),
    ],
)
def test_the_shape(status: int, kind: str, headers: dict[str, str]) -> None:
    error = ApiError(status, "some_code", "Do this.", "field")
    assert error.body() == {"error": {"message": "Do this.", "type": kind, "code": "some_code", "param": "field"}}
    assert error.headers() == headers
    assert str(error) == "Do this."


def test_in_a_stream_the_same_body_carries_the_status() -> None:
    error = ApiError(503, "some_code", "Do this.\nNow.", numbers={"window": 5})
    head, data, *rest = error.event().decode().split("\n")
    assert head == "event: error"
    assert rest == ["", ""]
    assert json.loads(data.removeprefix("data: ")) == {"error": {**error.body()["error"], "status": 503}}


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        ("one\ntwo\n\n", "one\ntwo"),
        ("\n".join(str(line) for line in range(30)), "\n".join(str(line) for line in range(10, 30))),
        ("\n".join("x" * 300 for _ in range(20)), "\n".join("x" * 300 for _ in range(6))),
        ("a" * 5 + "b" * 2000, "b" * 2000),
    ],
)
def test_the_last_lines_of_a_dead_server_stand_in_the_error(tail: str, kept: str) -> None:
    error = errors.from_unserved(Unserved("worker_crashed", 502, "It ended.", tail))
    assert error.body()["error"]["tail"] == kept
    head, data, *_ = error.event().decode().split("\n")
    assert head == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["tail"] == kept


@pytest.mark.parametrize("tail", ["", "\n \n"])
def test_without_last_lines_there_is_no_tail(tail: str) -> None:
    assert "tail" not in errors.from_unserved(Unserved("waited_too_long", 503, "Ask later.", tail)).body()["error"]


def llama(status: int, message: str, kind: str = "server_error", **more: object) -> tuple[int, bytes]:
    return status, json.dumps({"error": {"code": status, "message": message, "type": kind, **more}}).encode()


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        # its own words for what the request did wrong, on b10434 and b11434
        (llama(500, "[json.exception.parse_error.101] parse error at line 1"), 400, "invalid_request"),
        (llama(400, "[json.exception.parse_error.101] parse error", "invalid_request_error"), 400, "invalid_request"),
        (llama(500, "Value is not callable: null at row 1, column 3"), 400, "invalid_request"),
        (llama(500, "Failed to parse tools: Missing tool type"), 400, "invalid_request"),
        (llama(500, "image input is not supported - hint: you may need to provide the mmproj"), 400, "invalid_request"),
        (llama(501, "This server does not support embeddings", "not_supported_error"), 400, "not_supported"),
        (llama(400, "Cannot have 2 or more assistant messages", "invalid_request_error"), 400, "invalid_request"),
        (llama(404, "File Not Found", "not_found_error"), 404, "invalid_request"),
        # what is wrong with the server
        (llama(401, "Invalid API Key", "authentication_error"), 502, "engine_failed"),
        (llama(503, "Loading model", "unavailable_error"), 502, "engine_failed"),
        ((500, b""), 502, "engine_failed"),
        ((500, b"<html>"), 502, "engine_failed"),
        ((500, b"[]"), 502, "engine_failed"),
        ((500, b'{"error": "x"}'), 502, "engine_failed"),
        ((500, b'{"error": ["message"]}'), 502, "engine_failed"),
        ((500, b'{"error": {"type": "x"}}'), 502, "engine_failed"),
        ((400, b'{"error": {"message": "x", "type": "exceed_context_size_error"}}'), 502, "engine_failed"),
        ((500, b"\xff\xfe"), 502, "engine_failed"),
    ],
)
def test_what_a_llama_server_says(answer: tuple[int, bytes], status: int, code: str) -> None:
    error = errors.from_child(*answer)
    assert (error.status, error.code) == (status, code)


def test_a_failure_in_the_middle_of_an_answer_is_the_servers_own() -> None:
    error = errors.from_child(*llama(500, "Compute error."), begun=True)
    assert (error.status, error.code) == (502, "engine_failed")
    assert error.message == "The model's server failed (500: Compute error.). Ask again."


def test_an_overflow_has_both_numbers_as_words_and_as_values() -> None:
    sent = llama(400, "too long", "exceed_context_size_error", n_prompt_tokens=5003, n_ctx=4096)
    error = errors.from_child(*sent)
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    assert "5,003 tokens" in error.message
    assert "4,096" in error.message
    assert "Shorten the prompt" in error.message
    assert error.body()["error"]["prompt_tokens"] == 5003
    assert error.body()["error"]["context_window"] == 4096


def test_an_overflow_of_a_lowered_window_says_so() -> None:
    assert "(lowered from 8,192 because memory ran short)" in errors.overflow(5000, 4096, 8192).message


def test_what_host_and_library_say_keeps_their_words() -> None:
    unserved = errors.from_unserved(Unserved("model_pinned", 409, "Unpin it.", "tail"))
    assert (unserved.status, unserved.code, unserved.message) == (409, "model_pinned", "Unpin it.")
    missing = errors.from_library(ModelNotFound("x", "There is no model."))
    assert (missing.status, missing.code, missing.param) == (404, "model_not_found", "model")
    broken = errors.from_library(ModelBroken("x", "It is damaged."))
    assert (broken.status, broken.code, broken.param) == (422, "model_broken", "model")


def test_a_fault_of_ours_names_its_kind_and_nothing_of_its_text() -> None:
    error = errors.from_fault(ValueError("/home/me/secret"))
    assert (error.status, error.code) == (500, "internal_error")
    assert "ValueError" in error.message
    assert "secret" not in error.message
