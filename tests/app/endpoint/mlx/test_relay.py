"""A chat's way to an MLX child and back, with a child that misbehaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from aiohttp import web

from app.endpoint import relay, upstream
from app.endpoint.call import CHAT_PATH
from app.host.refused import Unserved
from app.host.status import NoticeStatus
from engines.child.probe import TRUSTS_NOBODY
from engines.mlx.prefix_cache import conversation_of
from engines.plan import LaunchPlan, Memory, Window
from tests.app.endpoint.mlx.child import (
    DONE,
    FOLDER,
    USAGE,
    KeepingChild,
    chunk,
    event,
    holds_to,
    make_call,
    refusal,
    says,
)
from tests.app.endpoint.upstream import Answer, Setting, breaks_off_after, refuses, relaying, sends

USER = {"role": "user", "content": "Hi"}
CRASHED = Unserved("worker_crashed", 502, "The server ended. Ask again.", tail="one\nlast words")
NOTICE = NoticeStatus("bound", 1.0, "It is bound.", {}, "tiny")
PROMPT = 24
WINDOW = 4096


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LAST_WORDS_SECONDS", 0.05)


async def ask(setting: Setting, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """The whole answer."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{setting.port}", trust_env=False, verify=TRUSTS_NOBODY
    ) as client:
        return await client.post(CHAT_PATH, json={"model": "tiny", "messages": [USER], **more}, headers=headers)


def asked(setting: Setting) -> list[dict[str, Any]]:
    """What the child was asked, time by time."""
    return [json.loads(body) for body in setting.bodies]


def budgets(setting: Setting) -> list[int]:
    """The budgets of those."""
    return [body["max_tokens"] for body in asked(setting)]


def values(answer: httpx.Response) -> list[Any]:
    """The events of a finished stream but for its end and the comments."""
    *events, end = answer.content.removesuffix(b"\n\n").split(b"\n\n")
    assert end + b"\n\n" == DONE
    return [json.loads(event.removeprefix(b"data: ")) for event in events if not event.startswith(b":")]


def text(answer: httpx.Response) -> str:
    """What a client puts together."""
    deltas = [choice["delta"] for value in values(answer) for choice in value["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error, as a status or as the last event."""
    if answer.status_code != 200:
        error: dict[str, Any] = answer.json()["error"]
        return {"status": answer.status_code, **error}
    kind, data = answer.content.removesuffix(b"\n\n").split(b"\n\n")[-1].split(b"\n")
    assert kind == b"event: error"
    last: dict[str, Any] = json.loads(data.removeprefix(b"data: "))["error"]
    return last


# --- the budget ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("more", "posted", "reduced"),
    [
        ({}, [WINDOW, WINDOW - PROMPT], None),
        ({"max_tokens": -1}, [WINDOW, WINDOW - PROMPT], None),
        ({"max_tokens": 8}, [8], None),
        ({"max_completion_tokens": 8}, [8], None),
        ({"max_tokens": WINDOW - PROMPT}, [WINDOW - PROMPT], None),
        ({"max_tokens": WINDOW}, [WINDOW, WINDOW - PROMPT], WINDOW - PROMPT),
        ({"max_tokens": 10**9}, [10**9, WINDOW - PROMPT], WINDOW - PROMPT),
    ],
)
async def test_a_budget_over_the_window_is_asked_once_more_with_what_is_left(
    stream: bool, more: dict[str, Any], posted: list[int], reduced: int | None
) -> None:
    async with relaying(holds_to(WINDOW, PROMPT, says("Hello", reason="length")), make_call) as setting:
        answer = await ask(setting, stream=stream, **more)
        assert setting.host.open_turns == 0
    assert budgets(setting) == posted
    assert answer.headers.get("x-plimsoll-max-tokens") == (None if reduced is None else str(reduced))
    last = values(answer)[-1] if stream else answer.json()
    assert last.get("plimsoll", {}).get("reduced_max_tokens") == reduced
    reason = values(answer)[1]["choices"][0]["finish_reason"] if stream else last["choices"][0]["finish_reason"]
    assert reason == "length"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("more", [{}, {"max_tokens": 1}])
async def test_a_prompt_that_fills_the_window_is_the_overflow_with_its_numbers(
    stream: bool, more: dict[str, Any]
) -> None:
    async with relaying(holds_to(WINDOW, WINDOW, says("x")), make_call, KeepingChild) as setting:
        answer = await ask(setting, stream=stream, **more)
        child: Any = setting.host.child
    error = error_of(answer)
    assert (error["status"], error["code"]) == (400, "context_length_exceeded")
    assert (error["prompt_tokens"], error["context_window"]) == (WINDOW, WINDOW)
    assert len(setting.bodies) == 1
    assert child.told[1:] == [(False, None)]


async def test_a_window_that_the_brake_lowered_is_named_in_the_overflow() -> None:
    braked = LaunchPlan("tiny", "mlx", (), {}, Window(WINDOW, 8192, "brake", ""), Memory(None))

    async with relaying(holds_to(WINDOW, 5000, says("x")), make_call) as setting:
        setting.host.child.plan = braked
        answer = await ask(setting)
    assert "lowered from 8,192" in error_of(answer)["message"]


async def test_there_is_no_third_try() -> None:
    async with relaying(refuses(400, refusal(PROMPT, 600, 512)), make_call) as setting:
        answer = await ask(setting, stream=True)
    assert (answer.status_code, error_of(answer)["code"]) == (503, "window_changed")
    assert answer.headers["retry-after"]
    assert budgets(setting) == [WINDOW, 488]


# --- the answer ------------------------------------------------------------------------------------------------------


async def test_the_child_always_streams_and_gets_its_own_name_and_no_compaction() -> None:
    async with relaying(sends(says("Hel", "lo")), make_call) as setting:
        answer = await ask(setting, stream=False, stop=["x"], n=1)
    (body,) = asked(setting)
    assert body["stream"] is True
    assert body["model"] == str(FOLDER)
    assert body["context_management"] == []
    assert {"stop", "n"}.isdisjoint(body)
    value = answer.json()
    assert value["object"] == "chat.completion"
    assert value["model"] == "tiny"
    assert value["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert value["usage"] == USAGE
    assert answer.headers["x-plimsoll-window"] == str(WINDOW)
    assert answer.headers["x-own"] == "1"


@pytest.mark.parametrize("wanted", [True, False])
async def test_usage_is_streamed_only_to_a_client_that_asked(wanted: bool) -> None:
    async with relaying(sends(says("a")), make_call) as setting:
        answer = await ask(setting, stream=True, stream_options={"include_usage": wanted})
    assert [value["usage"] for value in values(answer) if "usage" in value] == ([USAGE] if wanted else [])
    assert str(FOLDER) not in answer.text


@pytest.mark.parametrize("more", [{}, {"max_tokens": 100}])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_sequence_ends_the_answer_and_lets_the_child_go(stream: bool, more: dict[str, Any]) -> None:
    gone = asyncio.Event()
    counted = holds_to(WINDOW, PROMPT, b"")

    async def endless(request: web.Request) -> web.StreamResponse:
        budget = json.loads(await request.read())["max_tokens"]
        if PROMPT + budget > WINDOW:
            return await counted(request)
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for piece in ("one", " ST", "OP"):
                await response.write(chunk(content=piece))
            await asyncio.sleep(60)
        finally:
            gone.set()
        return response

    async with relaying(endless, make_call, KeepingChild) as setting:
        answer = await ask(setting, stream=stream, stop="STOP", stream_options={"include_usage": True}, **more)
        await asyncio.wait_for(gone.wait(), 5)
        child: Any = setting.host.child
    usage = {"prompt_tokens": PROMPT, "completion_tokens": 3, "total_tokens": PROMPT + 3}
    if stream:
        assert text(answer) == "one "
        assert values(answer)[-1]["usage"] == usage
    else:
        value = answer.json()
        assert value["choices"] == [
            {"index": 0, "message": {"role": "assistant", "content": "one "}, "finish_reason": "stop"}
        ]
        assert value["usage"] == usage
    assert child.told[1:] == [(True, PROMPT + 3)]
    assert len(setting.bodies) == 2


async def test_a_prompt_that_cannot_be_counted_leaves_the_usage_out() -> None:
    async with relaying(sends(says("one STOP", "two")), make_call) as setting:
        answer = await ask(setting, stream=False, stop="STOP", max_tokens=9)
    assert answer.json()["choices"][0]["message"]["content"] == "one "
    assert "usage" not in answer.json()


async def test_notices_stand_before_the_end() -> None:
    async with relaying(sends(says("a")), make_call, notices=(NOTICE,)) as setting:
        answer = await ask(setting, stream=True, stream_options={"include_usage": True})
    *_, usage, ours = values(answer)
    assert usage["usage"] == USAGE
    assert [notice["kind"] for notice in ours["plimsoll"]["notices"]] == ["bound"]


# --- never a silent cut ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("child", "code", "words"),
    [
        (sends(chunk(content="a"), event({"error": "boom"})), "engine_failed", "boom"),
        (sends(chunk(content="a"), b"data: {\n\n"), "engine_failed", "cannot be read"),
        (sends(chunk(content="a")), "engine_failed", "broke off"),
        (sends(chunk(content="a"), chunk("stop")), "engine_failed", "broke off"),
        (breaks_off_after(chunk(content="a")), "engine_failed", "broke off"),
    ],
)
async def test_an_answer_that_breaks_off_is_an_error(stream: bool, child: Answer, code: str, words: str) -> None:
    async with relaying(child, make_call, KeepingChild) as setting:
        answer = await ask(setting, stream=stream)
        kept: Any = setting.host.child
        assert setting.host.open_turns == 0
    error = error_of(answer)
    assert (error["status"], error["code"]) == (502, code)
    assert words in error["message"]
    assert kept.told[1:] == [(True, None)]
    assert (b'"content": "a"' in answer.content) is stream


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_is_a_status(stream: bool) -> None:
    async with relaying(refuses(400, b'{"detail": "Invalid tool_choice."}'), make_call, KeepingChild) as setting:
        answer = await ask(setting, stream=stream)
        child: Any = setting.host.child
    assert answer.status_code == 400
    assert "Invalid tool_choice" in error_of(answer)["message"]
    assert child.told[1:] == [(False, None)]


async def test_a_refusal_that_comes_late_is_an_event_and_so_is_a_reduced_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "COMMIT_SECONDS", 0.05)

    def slow(then: Answer) -> Answer:
        async def answer(request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.2)
            return await then(request)

        return answer

    async with relaying(slow(holds_to(WINDOW, WINDOW, b"")), make_call) as setting:
        assert error_of(await ask(setting, stream=True))["code"] == "context_length_exceeded"
    async with relaying(slow(holds_to(WINDOW, PROMPT, says("a"))), make_call) as setting:
        answer = await ask(setting, stream=True, max_tokens=WINDOW)
    assert "x-plimsoll-max-tokens" not in answer.headers
    assert answer.content.startswith(b": Tiny reads the prompt\n\n")
    assert values(answer)[-1]["plimsoll"]["reduced_max_tokens"] == WINDOW - PROMPT


@pytest.mark.parametrize("stream", [True, False])
async def test_a_dead_childs_last_lines_reach_the_client(stream: bool) -> None:
    gone = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        try:
            response = await sends(chunk(content="a"))(request)
            await asyncio.sleep(60)
        finally:
            gone.set()
        return response

    async with relaying(silent, make_call, KeepingChild) as setting:
        asking = asyncio.create_task(ask(setting, stream=stream))
        while not setting.bodies:
            await asyncio.sleep(0.01)
        setting.host.broken.set_result(CRASHED)
        answer = await asyncio.wait_for(asking, 5)
        await asyncio.wait_for(gone.wait(), 5)
    error = error_of(answer)
    assert (error["code"], error["status"], error["tail"]) == ("worker_crashed", 502, "one\nlast words")


# --- who talks, and how it ended -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_the_child_hears_whose_conversation_it_is_and_how_the_stream_ended(stream: bool) -> None:
    async with relaying(sends(says("a")), make_call, KeepingChild) as setting:
        await ask(setting, {"x-conversation-id": "mine"}, stream=stream)
        child: Any = setting.host.child
    body = {"model": "tiny", "messages": [USER], "stream": stream}
    assert child.told == [conversation_of(body, "mine"), (False, USAGE["total_tokens"])]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_turn_and_child_at_once(stream: bool, begun: bool) -> None:
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        try:
            if not begun:
                await asyncio.sleep(60)
            await response.prepare(request)
            while True:
                await response.write(chunk(content="x"))
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    async with relaying(endless, make_call, KeepingChild) as setting:
        asking = asyncio.create_task(ask(setting, stream=stream))
        while not setting.bodies:
            await asyncio.sleep(0.01)
        assert setting.host.open_turns == 1
        asking.cancel()
        await asyncio.wait_for(gone.wait(), 1)
        child: Any = setting.host.child
        while setting.host.open_turns:
            await asyncio.sleep(0.01)
    assert child.told[1:] == [(True, None)]


async def test_a_client_that_leaves_before_the_child_is_asked_abandons_nothing() -> None:
    begun = asyncio.Event()

    class Slow(KeepingChild):
        async def begin(self, conversation: Any) -> None:
            begun.set()
            await asyncio.sleep(60)

    async with relaying(sends(says("a")), make_call, Slow) as setting:
        asking = asyncio.create_task(ask(setting, stream=True))
        await asyncio.wait_for(begun.wait(), 5)
        asking.cancel()
        while setting.host.open_turns:
            await asyncio.sleep(0.01)
        child: Any = setting.host.child
    assert child.told == []
    assert setting.bodies == []
