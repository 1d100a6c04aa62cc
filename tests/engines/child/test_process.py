"""Real processes: started, drained, stopped with their descendants, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from engines.child.parent_death import for_this_system
from engines.child.process import ChildProcess
from tests.fixtures.waiting import until, until_gone

ENV = {"PATH": os.environ["PATH"]}


def child(code: str, on_line: object = None) -> ChildProcess:
    argv = [sys.executable, "-u", "-c", textwrap.dedent(code)]
    return ChildProcess.spawn(argv, ENV, for_this_system(), on_line)  # type: ignore[arg-type]


async def test_its_output_is_kept_and_its_end_is_heard_of() -> None:
    process = child("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert await asyncio.wait_for(process.died, 10) == 3
    assert sorted(process.tail.text().splitlines()) == ["err", "out"]
    assert not process.running


async def test_a_flood_of_output_is_drained_and_bounded() -> None:
    process = child("for i in range(20000): print('x' * 100, i)\nprint('y' * 100_000)\nprint('last')")
    assert await asyncio.wait_for(process.died, 30) == 0
    lines = process.tail.text().splitlines()
    assert lines[-1] == "last"
    assert len(lines) <= 400
    assert max(map(len, lines)) <= 4096


async def test_the_end_of_stdin_stops_a_child_that_listens_for_it() -> None:
    process = child("import sys; print('up'); sys.stdin.read(); sys.exit(7)")
    await until(lambda: "up" in process.tail.text())
    await process.stop(lifeline=True)
    assert process.died.result() == 7


async def test_a_child_that_ignores_stdin_is_terminated() -> None:
    process = child("import time; print('up'); time.sleep(600)")
    await until(lambda: "up" in process.tail.text())
    await process.stop(lifeline=True)
    assert process.died.result() == -signal.SIGTERM


async def test_a_child_that_ignores_everything_is_killed() -> None:
    process = child("import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)")
    await until(lambda: "up" in process.tail.text())
    await process.stop(lifeline=False, hurry=True)
    assert process.died.result() == -signal.SIGKILL


async def test_descendants_go_too() -> None:
    process = child(
        """
        import subprocess, sys, time
        code = 'import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'
        inner = subprocess.Popen([sys.executable, '-c', code])
        print(inner.pid)
        time.sleep(600)
        """
    )
    await until(lambda: process.tail.text().strip().isdigit())
    grandchild = int(process.tail.text())
    await process.stop(lifeline=False, hurry=True)
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


async def test_a_cancelled_stop_goes_on_and_a_second_one_waits_for_it() -> None:
    process = child("import time; print('up'); time.sleep(600)")
    await until(lambda: "up" in process.tail.text())
    stopping = asyncio.create_task(process.stop(lifeline=True))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await process.stop(lifeline=True)
    assert not process.running


async def test_a_program_that_cannot_be_started_says_so() -> None:
    with pytest.raises(FileNotFoundError):
        ChildProcess.spawn(["/no/such/program"], ENV, for_this_system())


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
async def test_a_child_dies_with_its_parent_even_when_it_ignores_stdin(tmp_path: Path) -> None:
    parent = textwrap.dedent(
        """
        import asyncio, os, sys
        from engines.child.parent_death import for_this_system
        from engines.child.process import ChildProcess
        async def main():
            sleep = [sys.executable, '-c', 'import time; time.sleep(600)']
            p = ChildProcess.spawn(sleep, dict(os.environ), for_this_system())
            print(p.pid, flush=True)
            await p.died
        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    await until_gone(pid, seconds=2)
