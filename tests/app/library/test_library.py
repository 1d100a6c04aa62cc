"""The library on the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from app.library import library as module
from app.library.library import Library
from app.library.names import ModelNotFound
from app.library.scanner import ScanResult, scan
from tests.app.library.examples import write_model
from tests.fixtures.waiting import until


async def test_it_is_empty_until_it_has_looked(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf")
    library = Library([tmp_path, tmp_path / "gone"])
    assert not library.records
    with pytest.raises(ModelNotFound):
        library.resolve("a", loaded=(), default=None)
    result = await library.rescan()
    assert [record.id for record in library.records] == ["a"]
    assert library.resolve("a", loaded=(), default=None) is library.records[0]
    assert library.problems == result.problems != ()


async def test_other_folders_count_at_the_next_scan(tmp_path: Path) -> None:
    write_model(tmp_path / "one" / "a.gguf")
    write_model(tmp_path / "two" / "b.gguf")
    library = Library([tmp_path / "one"])
    await library.rescan()
    library.folders = (tmp_path / "two",)
    await library.rescan()
    assert [record.id for record in library.records] == ["b"]


async def test_the_second_scan_relies_on_the_first(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf")
    library = Library([tmp_path])
    first = await library.rescan()
    second = await library.rescan()
    assert second.cache[tmp_path / "a.gguf"] is first.cache[tmp_path / "a.gguf"]


async def test_a_scan_never_blocks_the_loop_and_never_runs_twice_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "a.gguf")
    threads: list[int] = []
    running: list[int] = []
    go = threading.Event()

    def slow(*given: object) -> ScanResult:
        threads.append(threading.get_ident())
        running.append(1)
        assert len(running) == 1
        assert go.wait(10)
        running.pop()
        return scan(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "scan", slow)
    library = Library([tmp_path])
    scans = [asyncio.ensure_future(library.rescan()) for _ in range(2)]
    await until(lambda: threads)
    assert not library.records
    go.set()
    await asyncio.gather(*scans)
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    assert [record.id for record in library.records] == ["a"]
