"""What an MLX child prints: a warning of ours is repeated once, the rest goes to the log of children."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from engines.child.ledger import Ledger
from engines.child.process import ChildProcess
from engines.errors import ExitedWhileLoading
from engines.machine import Machine
from engines.memory.bill import GIB
from engines.mlx import process
from engines.mlx.engine import MlxEngine
from engines.mlx.main import NO_CACHE_LIMIT
from engines.plan import LaunchSettings
from tests.fixtures.facts import facts


async def test_a_missing_cache_limit_is_one_warning_and_no_line_tells_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    def spawn(environment: Mapping[str, str], port: int, on_line: Callable[[str], None]) -> ChildProcess:
        keys.append(environment["MLX_VLM_SERVER_API_KEY"])
        for line in ("loading", NO_CACHE_LIMIT, f"the key is {keys[0]}"):
            on_line(line)
        raise OSError("no processes left")

    monkeypatch.setattr(process, "spawn", spawn)
    caplog.set_level(logging.DEBUG)
    engine = MlxEngine(Ledger(tmp_path / "workers.json"), tmp_path, installed=True)
    plan = engine.plan("tiny", facts(), Machine("Linux", "x86_64", GIB, 2), LaunchSettings())
    with pytest.raises(ExitedWhileLoading, match="no processes left"):
        await engine.start(plan, lambda _: None)
    (warned,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "tiny: mlx.core has no set_cache_limit" in warned.getMessage()
    assert [record.getMessage() for record in caplog.records if record.name == "child"][-1] == "tiny: the key is [key]"
    assert keys[0] not in caplog.text
