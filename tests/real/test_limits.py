"""Under a real memory limit the window is what fits, it can be filled to its end, and nobody is killed for it.

Found on Linux 6.18 (Python 3.11, no swap): 148 MiB is the smallest limit. The application and a child with the floor,
its window full, touch 147 MiB, 64 MiB of them the KV cache; with 146 MiB the kernel kills the child in the prompt.

Ten limits from a little above that upwards. Three of them, the smallest and the largest two whose window takes only
seconds, are filled to the end; the others answer a short prompt: a prompt's work grows with its square, and 50,000
tokens would take minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.memory.grid import FLOOR, GRID
from tests.fixtures import tiny_gguf
from tests.fixtures.cgroup import MemoryGroup, memory_group
from tests.fixtures.running import Running, chat
from tests.fixtures.waiting import is_gone

pytestmark = pytest.mark.real

MIB = 1 << 20
TRAINED = 131_072
"""Tokens; 2 GiB of KV cache at 16 KiB a token."""
LIMITS = {
    176: True,
    192: False,
    208: False,
    256: False,
    384: False,
    512: False,
    704: True,
    768: True,
    1536: False,
    2048: False,
}
"""MiB, and whether the window is filled."""
BEYOND_THE_FLOOR = 704
"""MiB: from this limit on there is memory for more than the floor, 512 MiB left free and all."""
LEFT = 8
"""Tokens of the window that a filling prompt leaves, four of them for the answer."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    tiny_gguf.make(
        folder / "wide.gguf", arch="qwen3", ctx=TRAINED, name="wide", layers=4, heads=8, kv_heads=8, head_dim=128
    )
    return folder


@pytest.fixture
def group(limit: int) -> Iterator[MemoryGroup]:
    with memory_group(limit * MIB) as made:
        yield made


def kills(group: MemoryGroup) -> int:
    """How many processes of the group the kernel has killed for memory."""
    name = "memory.events" if group.version == 2 else "memory.oom_control"
    found = re.search(r"^oom_kill (\d+)$", (group.folder / name).read_text(), re.MULTILINE)
    assert found is not None, f"{name} does not count"
    return int(found[1])


async def ask(client: httpx.AsyncClient, digits: int) -> httpx.Response:
    """A prompt of so many digits, every one a token."""
    answer = await client.post("/v1/chat/completions", json=chat("wide", "1" * digits, max_tokens=4))
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(("limit", "filled"), LIMITS.items())
async def test_a_limit_too_small_for_the_trained_window_bounds_it_and_it_serves(
    start: Any, models: Path, group: MemoryGroup, limit: int, filled: bool
) -> None:
    app: Running = start(models=(models,), wrap=tuple(group.wrap()))
    async with app.client() as client:
        first = await ask(client, 1)
        window = int(first.headers["x-plimsoll-window"])
        (child,) = app.status()["children"]
        assert child["pid"] in group.pids()
        if filled:
            frame = first.json()["usage"]["prompt_tokens"] - 1
            full = await ask(client, window - frame - LEFT)
            assert full.json()["usage"]["prompt_tokens"] == window - LEFT
        await ask(client, 1)

    assert window % GRID == 0
    assert FLOOR <= window < TRAINED
    assert (window > FLOOR) == (limit >= BEYOND_THE_FLOOR)
    assert first.headers["x-plimsoll-trained-window"] == str(TRAINED)
    assert first.headers["x-plimsoll-notice"] == "bound"
    assert child["window"]["planned"] == child["window"]["allocated"] == window
    (row,) = app.get("/v1/models")["data"]
    assert (row["context_window"], row["trained_context_window"]) == (window, TRAINED)

    (bound,) = app.notices()  # and so no crash, and no step of the brake
    assert bound["kind"] == "bound"
    assert (bound["numbers"]["window"], bound["numbers"]["trained"]) == (window, TRAINED)
    assert f"{window:,} of the {TRAINED:,} tokens" in bound["text"]
    assert not is_gone(child["pid"])
    assert [c["pid"] for c in app.status()["children"]] == [child["pid"]]
    assert kills(group) == 0
    print(f"{limit} MiB: {window:,} tokens{', filled' if filled else ''}, {group.usage_bytes() / MIB:.0f} MiB held")
