"""The ledger: what is ours is reaped, what merely has the pid is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engines.child.ledger import MARKER, Entry, Ledger, Seen, is_ours, look
from tests.fixtures.waiting import is_gone

ENTRY = Entry(100, 1000.0, "/bin/llama-server", "m1")


@pytest.mark.parametrize(
    ("seen", "ours"),
    [
        (Seen(1000.0, "/bin/llama-server", "m1"), True),
        (Seen(1000.4, "/bin/llama-server", "m1"), True),
        (Seen(1000.0, "/lib/renamed", "m1"), True),
        (Seen(1000.0, "/bin/llama-server", None), True),
        (Seen(1000.0, None, None), True),
        (Seen(1000.0, "/bin/llama-server", "m2"), False),
        (Seen(1000.0, "/bin/llama-server", ""), False),
        (Seen(1000.0, "/bin/other", None), False),
        (Seen(1002.0, "/bin/llama-server", "m1"), False),
        (None, False),
    ],
)
def test_identity(seen: Seen | None, ours: bool) -> None:
    assert is_ours(ENTRY, seen) is ours


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, MARKER: "mine"}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def entry_of(process: subprocess.Popen[bytes], **changes: object) -> dict[str, object]:
    seen = look(process.pid)
    assert seen is not None
    return {
        "pid": process.pid,
        "create_time": seen.create_time,
        "executable": seen.executable,
        "marker": "mine",
        **changes,
    }


def test_an_orphan_of_a_former_run_is_killed(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    file = tmp_path / "workers.json"
    file.write_text(json.dumps([entry_of(sleeper)]))
    assert [entry.pid for entry in Ledger(file).sweep()] == [sleeper.pid]
    assert is_gone(sleeper.pid)
    assert json.loads(file.read_text()) == []


@pytest.mark.parametrize("changes", [{"marker": "another"}, {"create_time": 12345.0}])
def test_a_foreign_process_with_the_recorded_pid_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], changes: dict[str, object]
) -> None:
    file = tmp_path / "workers.json"
    file.write_text(json.dumps([entry_of(sleeper, **changes)]))
    assert Ledger(file).sweep() == []
    assert psutil.pid_exists(sleeper.pid)
    assert sleeper.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"pid": "x"}]', "null"])
def test_a_damaged_ledger_is_begun_anew(tmp_path: Path, text: str) -> None:
    file = tmp_path / "workers.json"
    file.write_text(text)
    assert Ledger(file).sweep() == []
    assert json.loads(file.read_text()) == []


def test_children_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    ledger = Ledger(file)
    ledger.add(ENTRY)
    assert [row["pid"] for row in json.loads(file.read_text())] == [100]
    assert file.stat().st_mode & 0o077 == 0
    ledger.remove(100)
    ledger.remove(100)
    assert json.loads(file.read_text()) == []
