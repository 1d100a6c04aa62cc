"""A disk without space: the application serves all the same, and says once what it cannot write."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fixtures.running import HELLO, Running, chat
from tests.fixtures.waiting import is_gone, until_gone

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a tmpfs of a given size, which only Linux mounts"),
]

KIB = 1024
LOGS_BYTES = 64 * KIB
HOME_BYTES = 1024 * KIB
STOP_SECONDS = 15
PAGE = 4 * KIB
"""What a file takes on a tmpfs at least."""


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of that size at ``place``. Skips the test where none may be mounted."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root and mount(8) to mount a small tmpfs")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True, capture_output=True)


def fill(folder: Path) -> Path:
    """Leave no byte free there; returns the file that took them."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (64 * KIB, PAGE, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert os.statvfs(folder).f_bavail == 0
    return filler


@pytest.fixture
def disks() -> Iterator[ExitStack]:
    """Unmounted at the very end, after the application."""
    with ExitStack() as stack:
        yield stack


def begin(disks: ExitStack, home: Path, models: Path) -> Running:
    """The ``start`` fixture would end after its disk."""
    return disks.enter_context(Running(home, (models,)))


async def serve_one(app: Running) -> int:
    """Load, answer whole and as a stream; the child's pid."""
    async with app.client() as client:
        whole = await client.post("/v1/chat/completions", json=chat("hello"))
        assert whole.status_code == 200, whole.text
        assert whole.json()["choices"][0]["message"]["content"].strip() == HELLO
        stream = await client.post("/v1/chat/completions", json=chat("hello", stream=True))
        assert stream.text.rstrip().endswith("data: [DONE]")
        assert "event: error" not in stream.text
    (child,) = app.status()["children"]
    return int(child["pid"])


def stop(app: Running) -> str:
    """End it as a user would; what it said on stderr. It ends in order."""
    app.process.send_signal(signal.SIGTERM)
    _, said = app.process.communicate(timeout=STOP_SECONDS)
    assert app.process.returncode == 0, said
    return said


async def test_a_full_disk_of_logs_costs_the_log_and_one_sentence(
    disks: ExitStack, tmp_path: Path, tiny_models: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    logs = disks.enter_context(small_disk(home / "logs", LOGS_BYTES))
    fill(logs)
    app = begin(disks, home, tiny_models)
    child = await serve_one(app)
    said = stop(app)
    await until_gone(child)
    about_the_log = [line for line in said.splitlines() if "The log " in line]
    assert about_the_log, said
    assert len(about_the_log) == len({line.split(" is not complete")[0] for line in about_the_log}), said
    assert all("No space left on device" in line for line in about_the_log)
    assert said.splitlines() == about_the_log  # and nothing else: no traceback


async def test_a_log_that_fills_its_disk_while_serving_is_one_sentence(
    disks: ExitStack, tmp_path: Path, tiny_models: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    logs = disks.enter_context(small_disk(home / "logs", LOGS_BYTES))
    app = begin(disks, home, tiny_models)
    fill(logs)
    await serve_one(app)
    said = stop(app)
    assert "No space left on device" in said
    assert "Traceback" not in said


async def test_a_home_that_fills_up_still_serves_a_model_though_no_ledger_can_be_written(
    disks: ExitStack, tmp_path: Path, tiny_models: Path
) -> None:
    home = disks.enter_context(small_disk(tmp_path / "home", HOME_BYTES))
    app = begin(disks, home, tiny_models)
    assert app.ledger() == []
    fill(home)
    child = await serve_one(app)
    assert app.ledger() == []  # the old one is whole, the new one was never there
    assert not is_gone(child)
    said = stop(app)
    await until_gone(child)
    assert "Traceback" not in said


async def test_a_home_that_is_full_from_the_start_is_one_sentence_about_what_to_do(
    disks: ExitStack, tmp_path: Path, tiny_models: Path
) -> None:
    home = disks.enter_context(small_disk(tmp_path / "home", HOME_BYTES))
    fill(home)
    command = [sys.executable, "-m", "app", "serve", "--home", str(home), "--models", str(tiny_models)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=STOP_SECONDS, check=False)
    assert done.returncode != 0
    assert "no space left" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


async def test_space_that_comes_back_is_used(disks: ExitStack, tmp_path: Path, tiny_models: Path) -> None:
    """The ledger and the log go on as soon as there is room."""
    home = disks.enter_context(small_disk(tmp_path / "home", HOME_BYTES))
    app = begin(disks, home, tiny_models)
    filler = fill(home)
    await serve_one(app)
    filler.unlink()
    async with app.client() as client:
        assert (await client.post("/v1/chat/completions", json=chat("endless", max_tokens=4))).status_code == 200
    (row,) = app.ledger()
    (child,) = app.status()["children"]
    assert row["pid"] == child["pid"]
    assert "endless serves on port" in app.log()
