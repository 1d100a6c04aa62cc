"""The official openai package for Python against a running Plimsoll: ``client.py BASE_URL MODEL [ENGINE]``.

Prints a line for each thing that works; an assertion ends it with status 1.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import openai

LONG = "word " * 40_000
"""More than the window of any model that this is run with."""


async def lists_models(client: openai.AsyncOpenAI, model: str) -> None:
    ids = [entry.id async for entry in client.models.list()]
    assert model in ids
    assert (await client.models.retrieve(model)).id == model


async def chats(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=8
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8


async def streams(client: openai.AsyncOpenAI, model: str) -> None:
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=8, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert any(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
    assert any(chunk.choices[0].finish_reason for chunk in chunks if chunk.choices)


async def streams_with_usage(client: openai.AsyncOpenAI, model: str) -> None:
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hi"}],
        max_completion_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    usages = [chunk.usage async for chunk in stream if chunk.usage]
    assert usages[-1].completion_tokens <= 4


async def completes(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await client.completions.create(model=model, prompt="Once upon", max_tokens=4)
    assert answer.choices[0].text


async def cancels(client: openai.AsyncOpenAI, model: str) -> None:
    """A stream that is closed early leaves its slot to the next request."""
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=2000, stream=True
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    await stream.close()
    async with asyncio.timeout(20):
        await chats(client, model)


async def hears_of_an_unknown_model(client: openai.AsyncOpenAI, model: str) -> None:
    try:
        await client.chat.completions.create(model=model + "x", messages=[{"role": "user", "content": "Hi"}])
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
        assert model in str(error)
    else:
        raise AssertionError("an unknown model was answered")


async def hears_of_an_overflow(client: openai.AsyncOpenAI, model: str) -> None:
    for stream in (False, True):
        try:
            await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": LONG}], stream=stream
            )
        except openai.BadRequestError as error:
            assert error.code == "context_length_exceeded"
            body = error.body
            assert isinstance(body, dict)
            assert body["prompt_tokens"] > body["context_window"] > 0
        else:
            raise AssertionError("a prompt over the window was answered")


CHECKS: tuple[Callable[[openai.AsyncOpenAI, str], Awaitable[None]], ...] = (
    lists_models,
    chats,
    streams,
    streams_with_usage,
    completes,
    cancels,
    hears_of_an_unknown_model,
    hears_of_an_overflow,
)


async def hears_that_it_cannot_complete(client: openai.AsyncOpenAI, model: str) -> None:
    try:
        await client.completions.create(model=model, prompt="Once upon", max_tokens=4)
    except openai.BadRequestError as error:
        assert error.code == "not_supported"
        assert "/v1/chat/completions" in str(error)
    else:
        raise AssertionError("an MLX model completed a bare prompt")


BY_NATURE = {"mlx": {completes: hears_that_it_cannot_complete}}
"""What an engine does otherwise: mlx_vlm has no route for a prompt without a chat."""


async def main(base_url: str, model: str, engine: str = "cpu") -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        for usual in CHECKS:
            check = BY_NATURE.get(engine, {}).get(usual, usual)
            await check(client, model)
            print(f"openai {openai.__version__}: {check.__name__.replace('_', ' ')}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
