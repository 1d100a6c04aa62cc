"""Tool calls and thinking of MLX models, through the real application and mlx_vlm's server, as an editor meets them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.fixtures.natures import NO_MLX
from tests.fixtures.running import Running, chat, events_of
from tests.fixtures.talking_mlx import make_talking_mlx

pytestmark = [pytest.mark.real, NO_MLX]

BEGIN = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{%- set tool_call = call.function %}
"""
END = """\
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
FORMS = {
    "json": """\
<tool_call>
{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}
</tool_call>""",
    "coder": """\
<tool_call>
<function={{ tool_call.name }}>
{% for name, value in tool_call.arguments | items %}<parameter={{ name }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>""",
    "gemma": """\
<|tool_call>call:{{ tool_call.name }}{
{%- for name, value in tool_call.arguments | items %}{{ name }}:<|"|>{{ value }}<|"|>,{% endfor %}}<tool_call|>""",
    "mistral": "[TOOL_CALLS]{{ tool_call.name }}[ARGS]{{ tool_call.arguments | tojson }}",
}
"""How a template writes calls; mlx_vlm chooses its parser by it (mlx_vlm/tools/registry.py, 0.7.10). Qwen3's form, and
those of the models of the same name below."""

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
LOOK = '<tool_call>\n{"name": "look", "arguments": {"where": "under \\"the\\" Söfa 😀"}}\n</tool_call>'
PARAMETERS = "<parameter=where>\nhere, or\nthere\n</parameter>\n<parameter=times>\n3\n</parameter>\n"
LOOK_XML = f"<tool_call>\n<function=look>\n{PARAMETERS}</function>\n</tool_call>"
THOUGHT = "<think>\nI should think, then say it.\n</think>\n\n"
MODELS = {
    "one": ADD,
    "two": f"{ADD}\n{LOOK}",
    "thinking": THOUGHT + ADD,
    "musing": '<think>\nOr <tool_call>{"name": "look", "arguments": {}}</tool_call>?\n</think>\n\n' + ADD,
    "answering": THOUGHT + "It is three, my friend.",
    "opened": THOUGHT.removeprefix("<think>\n") + "It is three, my friend.",
    "broken": '<tool_call>\n{"name": "add", "arguments": {"a": 1,, "b"}}\n</tool_call>',
    "garbled": '<tool_call>\n{name: add, "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    "coder": LOOK_XML,
    "gemma": 'Well. <|tool_call>call:look{where:<|"|>here, or "there"<|"|>,times:3}<tool_call|>',
    "mistral": 'Well. [TOOL_CALLS]look[ARGS]{"where": "here, or \\"there\\"", "times": 3}',
}
"""What each of them says; the prompt of ``opened`` ends in a thought."""
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in (
        ("add", {"a": {"type": "integer"}, "b": {"type": "integer"}}),
        ("look", {"where": {"type": "string"}, "times": {"type": "integer"}}),
    )
]
BOTH = (True, False)
"""Streamed and whole: in one test, since a load takes seconds."""


@dataclass(frozen=True)
class Said:
    """What a client has of an answer."""

    content: str
    reasoning: str
    calls: list[tuple[str, Any]]
    """Name and arguments: parsed, or the text of broken ones."""
    reason: str | None
    error: Any
    prompt: int = 0
    tokens: int = 0
    """Of the prompt, and of the answer."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """All models of this module; two stay loaded, and the tests come in an order that makes use of it."""
    folder = tmp_path_factory.mktemp("talking")
    for name, says in MODELS.items():
        template = BEGIN + FORMS.get(name, FORMS["json"]) + END
        template = template.replace("assistant\n", "assistant\n<think>\n") if name == "opened" else template
        make_talking_mlx(folder / name, says, chat_template=template)
    with Running(tmp_path_factory.mktemp("home"), (folder,), settings='engine = "mlx"\nmax_models = 2\n') as running:
        yield running


@pytest.fixture
async def client(app: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with app.client() as made:
        yield made


async def ask(client: httpx.AsyncClient, model: str, stream: bool, **more: Any) -> Said:
    """One question to a model that is offered tools."""
    options = {"stream_options": {"include_usage": True}} if stream else {}
    body = {**chat(model, tools=TOOLS, stream=stream), **options, **more}
    answer = await client.post("/v1/chat/completions", json=body)
    if stream:
        assert answer.status_code == 200, answer.text
        return of_stream(events_of(iter(answer.text.splitlines())))
    value = answer.json()
    if answer.status_code != 200:
        return Said("", "", [], None, value["error"])
    choice = value["choices"][0]
    message = choice["message"]
    return Said(
        message["content"] or "",
        message.get("reasoning_content", ""),
        [whole_call(call) for call in message.get("tool_calls", ())],
        choice["finish_reason"],
        None,
        value["usage"]["prompt_tokens"],
        value["usage"]["completion_tokens"],
    )


def of_stream(events: list[str]) -> Said:
    """As a client puts its pieces together; they have to have OpenAI's shape."""
    content, reasoning, reasons, error = "", "", [], None
    usage = {"prompt_tokens": 0, "completion_tokens": 0}
    calls: list[dict[str, Any]] = []
    for value in (json.loads(event) for event in events if event != "[DONE]"):
        error = value.get("error", error)
        usage = value.get("usage") or usage
        for choice in value.get("choices", ()):
            content += choice["delta"].get("content", "")
            reasoning += choice["delta"].get("reasoning_content", "")
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            for part in choice["delta"].get("tool_calls", ()):
                assert not reasons, "a call after the end"
                if part["index"] == len(calls):
                    calls.append(part)
                else:
                    assert part["index"] == len(calls) - 1
                    assert set(part) == {"index", "function"}
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
    assert (events[-1] == "[DONE]") == (error is None)
    assert len(reasons) == (error is None)
    reason = reasons[0] if reasons else None
    parsed = [whole_call(call) for call in calls]
    return Said(content, reasoning, parsed, reason, error, usage["prompt_tokens"], usage["completion_tokens"])


def whole_call(call: dict[str, Any]) -> tuple[str, Any]:
    """As ``Said`` has it."""
    assert call["type"] == "function"
    assert call["id"]
    arguments = call["function"]["arguments"]
    try:
        return call["function"]["name"], json.loads(arguments)
    except ValueError:
        return call["function"]["name"], arguments


SUM = ("add", {"a": 1, "b": 2})
LOOKED = ("look", {"where": 'under "the" Söfa 😀'})
QUOTED = ("look", {"where": 'here, or "there"', "times": 3})
LOOKED_XML = ("look", {"where": "here, or\nthere", "times": 3})


async def test_calls_have_openais_shape_and_no_markup_is_left(client: httpx.AsyncClient) -> None:
    for model, content, reasoning, calls in (
        ("two", "", "", [SUM, LOOKED]),
        ("musing", "", 'Or <tool_call>{"name": "look", "arguments": {}}</tool_call>?', [SUM]),
        ("gemma", "Well.", "", [QUOTED]),
        ("mistral", "Well.", "", [QUOTED]),
        ("coder", "", "", [LOOKED_XML]),
        ("one", "", "", [SUM]),
    ):
        for stream in BOTH:
            said = await ask(client, model, stream)
            assert (said.error, said.reason, said.calls) == (None, "tool_calls", calls), model
            assert (said.content.strip(), said.reasoning.strip()) == (content, reasoning), model


async def test_a_choice_of_tools_is_kept(client: httpx.AsyncClient) -> None:
    for stream in BOTH:
        none = await ask(client, "one", stream, tool_choice="none")
        assert (none.calls, none.content, none.reason) == ([], ADD, "stop"), "whatever it says is its answer"
        free = await ask(client, "one", stream)
        named = await ask(client, "one", stream, tool_choice={"type": "function", "function": {"name": "add"}})
        for said in (free, named, await ask(client, "one", stream, tool_choice="required")):
            assert (said.calls, said.reason) == ([SUM], "tool_calls")
        assert none.prompt < named.prompt != free.prompt, "the others are not offered"
    unknown = {"type": "function", "function": {"name": "nothing"}}
    refused = await client.post("/v1/chat/completions", json=chat("one", tools=TOOLS, tool_choice=unknown))
    assert refused.status_code == 400
    assert "nothing" in refused.json()["error"]["message"]


async def test_a_call_that_is_cut_ends_as_any_other_answer_that_is_cut(client: httpx.AsyncClient) -> None:
    for model, call, markup in (("one", SUM, ADD), ("coder", LOOKED_XML, LOOK_XML)):
        whole = (await ask(client, model, stream=True)).tokens
        for tokens in range(1, whole - 1, 3):  # its last are the closing mark and the end
            said = await ask(client, model, tokens % 2 == 0, max_tokens=tokens)
            assert (said.error, said.reason, said.tokens > 0) == (None, "length", True), tokens
            if said.calls:
                ((name, arguments),) = said.calls
                assert (name, said.content) == (call[0], "")
                assert isinstance(arguments, str) or arguments == call[1]
            else:  # its name was not said to its end: nothing is lost
                assert markup.startswith(said.content)


async def test_the_loop_of_an_editor(client: httpx.AsyncClient) -> None:
    """It sends the call back with the tool's answer, as it had it."""
    for model, call, reasoning in (("coder", LOOKED_XML, ""), ("thinking", SUM, "I should think, then say it.")):
        user = {"role": "user", "content": "What is it?"}
        first = await client.post("/v1/chat/completions", json=chat(model, messages=[user], tools=TOOLS))
        prompt, message = first.json()["usage"]["prompt_tokens"], first.json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "three"}
        parts = {**result, "content": [{"type": "text", "text": "three"}]}
        for history in (
            [user, message, result],
            [user, {**message, "content": ""}, parts],
            [user, {name: message[name] for name in ("role", "tool_calls")}, result, user],
        ):
            for stream in BOTH:
                said = await ask(client, model, stream, messages=history)
                assert (said.error, said.reason, said.calls) == (None, "tool_calls", [call])
                assert (said.content, said.reasoning.strip()) == ("", reasoning)
                assert said.prompt > prompt + len("three")


async def test_thoughts_and_answer_are_apart_wherever_it_is_cut(client: httpx.AsyncClient) -> None:
    for model, more in (("answering", {}), ("answering", {"tools": None}), ("opened", {})):
        said, whole = [await ask(client, model, stream, **more) for stream in BOTH]
        assert said == whole
        assert (said.content, said.reason) == ("It is three, my friend.", "stop"), model
        assert said.reasoning.strip() == "I should think, then say it."
        for tokens in range(1, said.tokens - 1, 3):
            cut = await ask(client, model, tokens % 2 == 0, max_tokens=tokens, **more)
            assert (cut.reason, cut.tokens) == ("length", tokens)
            assert said.reasoning.startswith(cut.reasoning)
            assert said.content.startswith(cut.content)
            assert not cut.content or cut.reasoning == said.reasoning


async def test_a_broken_call_is_an_error_that_says_so(client: httpx.AsyncClient) -> None:
    for model, words in (("broken", "broken tool call"), ("garbled", "tool call that its server cannot read")):
        for stream in BOTH:
            said = await ask(client, model, stream)
            assert said.error is not None, model
            assert (said.error["code"], said.content, said.reason) == ("engine_failed", "", None)
            assert words in said.error["message"]
