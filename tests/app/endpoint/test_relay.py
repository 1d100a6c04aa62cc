"""A turn's way to the child and back, with a child that misbehaves: never a silent cut, the bytes unchanged."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from aiohttp import web

from app.endpoint import relay, upstream
from app.endpoint.call import CHAT_PATH, COMPLETIONS_PATH
from app.endpoint.stream import StreamAnswer
from app.endpoint.turn_facts import wait_text
from app.host.refused import Unserved
from app.host.status import NoticeStatus
from app.host.turn import WaitView
from app.host.vocabulary import WaitReason
from engines.child.probe import TRUSTS_NOBODY
from tests.app.endpoint.serving import pieces_of
from tests.app.endpoint.upstream import (
    DONE,
    EVENTS,
    KEY,
    MODEL,
    WHOLE,
    Setting,
    breaks_off_after,
    chunk,
    refuses,
    relaying,
    sends,
)

NOTICE = NoticeStatus("worker_crashed", 1.0, "It crashed.", {"exit_code": -9}, "tiny")
OVERFLOW = json.dumps(
    {
        "error": {
            "code": 400,
            "message": "x",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 5003,
            "n_ctx": 4096,
        }
    }
).encode()
CRASHED = Unserved("worker_crashed", 502, "The server ended. Ask again.")
Waiting = Callable[[WaitView], Awaitable[None]] | None


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LAST_WORDS_SECONDS", 0.05)


async def ask(setting: Setting, path: str = CHAT_PATH, *, stream: bool = True) -> httpx.Response:
    """The whole answer; a stream that is cut without its end is an error of httpx."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{setting.port}", trust_env=False, verify=TRUSTS_NOBODY
    ) as client:
        return await client.post(path, json={"a": "ä", "stream": stream})


def error_event(answer: httpx.Response) -> dict[str, Any]:
    """The error that ends a stream."""
    assert answer.status_code == 200
    *_, event = answer.content.split(b"\n\n")[:-1]
    kind, data = event.split(b"\n")
    assert kind == b"event: error"
    error: dict[str, Any] = json.loads(data.removeprefix(b"data: "))["error"]
    return error


def before_error(answer: httpx.Response) -> bytes:
    """What came before it."""
    return answer.content.partition(b"event: error\n")[0]


# --- the bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        EVENTS,
        (WHOLE,),
        (WHOLE[:-1], WHOLE[-1:]),
        tuple(bytes([byte]) for byte in WHOLE),
        tuple(pieces_of(WHOLE, range(5, len(WHOLE), 7))),
        (WHOLE[: -len(DONE)] + DONE[:4], DONE[4:]),
        (*EVENTS, b": bye\n\n"),
    ],
    ids=["events", "at once", "last byte alone", "bytes", "sevens", "done cut", "after done"],
)
async def test_the_childs_bytes_come_unchanged_however_they_are_cut(pieces: tuple[bytes, ...]) -> None:
    async with relaying(sends(*pieces)) as setting:
        answer = await ask(setting)
        assert answer.content == b"".join(pieces)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-own"] == "1"
        assert answer.headers["x-plimsoll-model"] == "tiny"
        assert answer.headers["x-plimsoll-window"] == "4096"
        assert answer.headers["x-plimsoll-trained-window"] == "40960"
        assert answer.headers["x-plimsoll-queue-ms"] == "250"
        assert "x-plimsoll-notice" not in answer.headers
        assert setting.host.open_turns == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_the_child_gets_the_body_as_it_is_and_its_own_key(stream: bool) -> None:
    async with relaying(sends(WHOLE)) as setting:
        await ask(setting, stream=stream)
        (request,) = setting.requests
        assert json.loads(setting.bodies[0]) == {"a": "ä", "stream": stream}
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["content-type"] == "application/json"
        assert request.path == CHAT_PATH


async def test_a_whole_answer_comes_as_it_is() -> None:
    async with relaying(refuses(200, b'{"choices": []}'), notices=(NOTICE,)) as setting:
        answer = await ask(setting, stream=False)
    assert (answer.status_code, answer.content) == (200, b'{"choices": []}')
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-plimsoll-notice"] == "worker_crashed"


# --- never a silent cut ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [sends, breaks_off_after])
@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        ((), b""),
        ((EVENTS[0],), EVENTS[0]),
        ((EVENTS[0], EVENTS[1][:-1]), EVENTS[0]),
        ((EVENTS[0], b'data: {"err'), EVENTS[0]),
        ((EVENTS[0], DONE[:-1]), EVENTS[0]),
    ],
)
async def test_a_stream_that_ends_without_its_end_is_an_error_event(
    broken: Callable[..., Any], sent: tuple[bytes, ...], passed: bytes
) -> None:
    async with relaying(broken(*sent)) as setting:
        answer = await ask(setting)
        assert setting.host.open_turns == 0
    error = error_event(answer)
    assert (error["code"], error["status"]) == ("engine_failed", 502)
    assert "Ask again" in error["message"]
    assert before_error(answer) == passed


@pytest.mark.parametrize(
    ("event", "status", "code"),
    [
        (b'data: {"error":{"code":500,"message":"boom","type":"server_error"}}\n\n', 502, "engine_failed"),
        (b'error: {"error":{"code":500,"message":"boom","type":"server_error"}}\n\n', 502, "engine_failed"),
        (b"data: " + OVERFLOW.replace(b'{"error": ', b'{"error":') + b"\n\n", 400, "context_length_exceeded"),
        (b'data: {"error": "boom"}\n\n', 502, "engine_failed"),
    ],
)
@pytest.mark.parametrize("cut", [None, 3, 12])
async def test_an_error_in_the_middle_of_a_stream_is_put_in_our_shape(
    event: bytes, status: int, code: str, cut: int | None
) -> None:
    pieces = (EVENTS[0] + event,) if cut is None else (EVENTS[0] + event[:cut], event[cut:])
    async with relaying(sends(*pieces)) as setting:
        answer = await ask(setting)
    error = error_event(answer)
    assert (error["status"], error["code"]) == (status, code)
    assert before_error(answer) == EVENTS[0]


async def test_a_turn_that_is_broken_off_says_why_and_lets_the_child_go() -> None:
    gone = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        try:
            response = await sends(EVENTS[0])(request)
            await asyncio.sleep(60)
        finally:
            gone.set()
        return response

    async with relaying(silent) as setting:
        asking = asyncio.create_task(ask(setting))
        while not setting.host.open_turns:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        setting.host.broken.set_result(CRASHED)
        answer = await asyncio.wait_for(asking, 5)
        await asyncio.wait_for(gone.wait(), 5)
    error = error_event(answer)
    assert (error["code"], error["status"], error["message"]) == ("worker_crashed", 502, CRASHED.sentence)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_child_that_died_is_named_when_its_death_is_heard_of_in_time(stream: bool) -> None:
    async with relaying(None) as setting:
        asyncio.get_running_loop().call_later(0.02, setting.host.broken.set_result, CRASHED)
        answer = await ask(setting, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_crashed")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_child_that_cannot_be_reached_is_a_502(stream: bool) -> None:
    async with relaying(None) as setting:
        answer = await ask(setting, stream=stream)
        assert setting.host.open_turns == 0
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_failed")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_of_the_child_is_a_status_while_nothing_is_sent(stream: bool) -> None:
    async with relaying(refuses(400, OVERFLOW)) as setting:
        answer = await ask(setting, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_refusal_that_comes_late_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "COMMIT_SECONDS", 0.05)

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return await refuses(400, OVERFLOW)(request)

    async with relaying(slow) as setting:
        answer = await ask(setting)
    assert answer.headers["x-plimsoll-window"] == "4096"
    error = error_event(answer)
    assert (error["code"], error["prompt_tokens"], error["status"]) == ("context_length_exceeded", 5003, 400)


async def test_a_child_that_falls_silent_inside_an_event_is_bridged_between_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "StreamAnswer", functools.partial(StreamAnswer, silence=0.02))

    async def stalls(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (EVENTS[0] + EVENTS[1][:9], EVENTS[1][9:] + EVENTS[3] + DONE):
            await response.write(piece)
            await asyncio.sleep(0.1)
        return response

    async with relaying(stalls) as setting:
        answer = await ask(setting)
    silence = b": still working\n\n"
    assert answer.content.startswith(EVENTS[0] + silence)
    assert answer.content.replace(silence, b"") == EVENTS[0] + EVENTS[1] + EVENTS[3] + DONE


async def test_a_client_that_leaves_frees_turn_and_child_at_once() -> None:
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(chunk("x"))
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    async with relaying(endless) as setting:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{setting.port}", trust_env=False, verify=TRUSTS_NOBODY
        ) as client:
            async with client.stream("POST", CHAT_PATH, json={"stream": True}) as response:
                await anext(response.aiter_bytes())
                assert setting.host.open_turns == 1
        await asyncio.wait_for(gone.wait(), 1)
        assert setting.host.open_turns == 0


# --- waiting, and what is said late ----------------------------------------------------------------------------------


def waits(*views: WaitView, then: Exception | None = None) -> Callable[[Waiting], Awaitable[None]]:
    async def before(waiting: Waiting) -> None:
        if waiting is not None:
            for view in views:
                await waiting(view)
        if then is not None:
            raise then

    return before


LOADING = WaitView(2.0, WaitReason.LOADING, 0, 0.4)


@pytest.mark.parametrize(
    ("path", "kind", "choice"),
    [
        (CHAT_PATH, "chat.completion.chunk", {"index": 0, "delta": {}, "finish_reason": None}),
        (COMPLETIONS_PATH, "text_completion", {"index": 0, "text": "", "finish_reason": None}),
    ],
)
async def test_a_client_that_waited_reads_comments_and_gets_the_facts_before_the_end(
    path: str, kind: str, choice: dict[str, Any]
) -> None:
    early = WaitView(1.0, WaitReason.LOADING, 0, 0.2)
    async with relaying(sends(WHOLE), before=waits(early, LOADING)) as setting:
        answer = await ask(setting, path)
    assert answer.headers["x-plimsoll-model"] == "tiny"
    assert "x-plimsoll-window" not in answer.headers
    assert answer.content.startswith(b": loading Tiny 40 %\n\n" + EVENTS[0])
    assert answer.content.endswith(DONE)
    ours = answer.content.removeprefix(b": loading Tiny 40 %\n\n" + WHOLE[: -len(DONE)]).removesuffix(DONE)
    value = json.loads(ours.removeprefix(b"data: "))
    assert ours.endswith(b"\n\n")
    assert (value["object"], value["choices"]) == (kind, [choice])
    assert value["plimsoll"] == {
        "model": "tiny",
        "window": 4096,
        "trained_window": 40960,
        "queue_ms": 250,
        "load_ms": None,
        "notices": [],
    }


async def test_a_notice_is_in_the_headers_and_in_the_last_object() -> None:
    async with relaying(sends(*EVENTS), notices=(NOTICE,)) as setting:
        answer = await ask(setting)
    assert answer.headers["x-plimsoll-notice"] == "worker_crashed"
    value = json.loads(answer.content.split(b"\n\n")[-3].removeprefix(b"data: "))
    assert value["plimsoll"]["notices"] == [
        {"kind": "worker_crashed", "text": "It crashed.", "numbers": {"exit_code": -9}}
    ]
    assert answer.content.endswith(DONE)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_unserved_turn_is_its_status(stream: bool) -> None:
    async with relaying(sends(WHOLE), before=waits(then=CRASHED)) as setting:
        answer = await ask(setting, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_crashed")


async def test_an_unserved_turn_after_the_commit_is_an_event() -> None:
    async with relaying(sends(WHOLE), before=waits(LOADING, then=CRASHED)) as setting:
        answer = await ask(setting)
    assert before_error(answer) == b": loading Tiny 40 %\n\n"
    assert error_event(answer)["message"] == CRASHED.sentence


async def test_a_fault_of_ours_after_the_commit_is_an_event_and_stands_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with relaying(sends(WHOLE), before=waits(LOADING, then=KeyError("secret"))) as setting:
        answer = await ask(setting)
    error = error_event(answer)
    assert (error["code"], error["status"]) == ("internal_error", 500)
    assert "secret" not in answer.text
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR]


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (WaitView(2, WaitReason.LOADING, 0, None), "loading Tiny"),
        (WaitView(2, WaitReason.LOADING, 0, 0.0), "loading Tiny 0 %"),
        (WaitView(2, WaitReason.LOADING, 0, 1.0), "loading Tiny 100 %"),
        (WaitView(2, WaitReason.SWITCHING, 3, 0.5), "making room for Tiny"),
        (WaitView(2, WaitReason.QUEUED, 3, None), "waiting for Tiny, 3 ahead"),
    ],
)
def test_what_a_waiting_client_reads(view: WaitView, text: str) -> None:
    assert wait_text(MODEL, view) == text
