"""A body is an object of JSON, bounded in size, time and depth; what is wrong is named with its place."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from app.endpoint import body
from app.endpoint.errors import ApiError
from tests.app.endpoint.serving import HEAD, request, send, serving, status_of

JSON = "Content-Type: application/json"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "Expecting value at line 1, column 1"),
        (b'{"a": 1,}', "line 1, column 9"),
        (b'{\n "a": tru}', "line 2, column 7"),
        (b'{"a": 1} x', "Extra data at line 1, column 10"),
        (b'{"a": "\x01"}', "Invalid control character at at line 1, column 8"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": Infinity}', "Infinity is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1e999}', "the number 1e999 is too large"),
        (b'{"a": -1e999}', "the number -1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number with thousands of digits"),
        (b'{"a": "\xff"}', "it is not UTF-8 at byte 7"),
        ('{"a": 1}'.encode("utf-16"), "it is not UTF-8 at byte 0"),
        (b'{"a": "\xed\xa0\x80"}', "it is not UTF-8 at byte 7"),
        (b"[1]", "it must be an object, not an array"),
        (b'"a"', "it must be an object, not a text"),
        (b"5", "it must be an object, not a number"),
        (b"1.5", "it must be an object, not a number"),
        (b"true", "it must be an object, not true or false"),
        (b"null", "it must be an object, not null"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 128 levels deep"),
        (b'{"a":' * 100_000, "nested more than 128 levels deep"),
        (b"[" * 100_000, "nested more than 128 levels deep"),
    ],
)
def test_a_malformed_body_is_a_400_that_names_the_place(raw: bytes, why: str) -> None:
    with pytest.raises(ApiError) as caught:
        body.parse(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert why in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"{}", {}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b' {"a": [1, {"b": null}]} \n', {"a": [1, {"b": None}]}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": ' + b"[" * 127 + b"]" * 127 + b"}", None),
    ],
)
def test_a_sound_body_is_its_value(raw: bytes, value: object) -> None:
    found = body.parse(raw)
    assert value is None or found == value


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=5))
def test_what_is_parsed_reaches_the_child_as_it_was(value: dict[str, object]) -> None:
    assert json.loads(body.encode(body.parse(json.dumps(value).encode()))) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_400(raw: bytes) -> None:
    try:
        found: object = body.parse(raw)
    except ApiError as error:
        found = error.status
    assert isinstance(found, dict) or found == 400


@given(st.integers(0, 12), st.integers(1, 12))
def test_depth_counts_what_stands_inside_each_other(depth: int, limit: int) -> None:
    value: object = 1
    for level in range(depth):
        value = [value, 2] if level % 2 else {"a": value, "b": 3}
    assert body.within_depth(value, limit) is (depth <= limit)


def test_half_a_surrogate_pair_cannot_be_sent_on() -> None:
    with pytest.raises(ApiError) as caught:
        body.encode(body.parse(b'{"a": "\\ud83d"}'))
    assert caught.value.status == 400
    assert "surrogate" in caught.value.message


async def echo(request: web.Request) -> web.Response:
    return web.json_response(await body.read_json(request))


ROUTE = web.post("/echo", echo)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([JSON], 200),
        (["Content-Type: application/json; charset=utf-8"], 200),
        (["CONTENT-TYPE: Application/JSON"], 200),
        ([], 415),
        (["Content-Type: text/plain"], 415),
        (["Content-Type: application/x-www-form-urlencoded"], 415),
        (["Content-Type: /;;;=;"], 415),
        ([JSON, "Content-Encoding: gzip"], 415),
        ([JSON, "Content-Encoding: identity"], 200),
    ],
)
async def test_only_plain_json_is_read(headers: list[str], status: int) -> None:
    async with serving(ROUTE) as port:
        answer = await send(port, request("POST /echo", *headers, body=b'{"a": 1}'))
    assert status_of(answer) == status


async def test_a_compressed_body_is_not_unpacked() -> None:
    bomb = gzip.compress(b'{"a": "' + b"x" * 1_000_000 + b'"}')
    async with serving(ROUTE) as port:
        answer = await send(port, request("POST /echo", JSON, "Content-Encoding: gzip", body=bomb))
    assert status_of(answer) == 415
    assert b"compression_not_supported" in answer


async def test_chunks_are_put_together() -> None:
    async with serving(ROUTE) as port:
        head = request("POST /echo", JSON, "Transfer-Encoding: chunked")
        answer = await send(port, head, b'4\r\n{"a"\r\n', b"1\r\n:\r\n", b"3\r\n 5}\r\n", b"0\r\n\r\n")
    assert status_of(answer) == 200
    assert answer.endswith(b'{"a": 5}')


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes() -> None:
    async with serving(ROUTE) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /echo HTTP/1.1\r\n" + HEAD + JSON.encode() + b"\r\nContent-Length: 200000000\r\n\r\n{")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.close()
    assert status_of(answer) == 413


async def test_a_body_that_grows_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_BODY_BYTES", 10_000)
    async with serving(ROUTE) as port:
        chunk = b"800\r\n" + b"x" * 0x800 + b"\r\n"
        answer = await send(port, request("POST /echo", JSON, "Transfer-Encoding: chunked"), chunk * 10, b"0\r\n\r\n")
    assert status_of(answer) == 413


async def test_a_body_that_does_not_come_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.05)
    async with serving(ROUTE) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /echo HTTP/1.1\r\n" + HEAD + JSON.encode() + b"\r\nContent-Length: 20\r\n\r\n{")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.close()
    assert status_of(answer) == 408


async def test_a_large_body_is_parsed_too() -> None:
    large = json.dumps({"a": "x" * body.THREAD_BYTES}).encode()
    async with serving(ROUTE) as port:
        answer = await send(port, request("POST /echo", JSON, body=large))
    assert status_of(answer) == 200
