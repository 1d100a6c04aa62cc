"""What later starts and the first one say to each other, over a real local socket."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtNetwork import QLocalSocket
from pytestqt.qtbot import QtBot

from app.ui.single_instance import RAISE, RAISED, SOCKET, SOCKET_BYTES, FirstInstance, server_name

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.usefixtures("qapp")


@contextmanager
def connected(name: str, qtbot: QtBot) -> Iterator[QLocalSocket]:
    client = QLocalSocket()
    client.connectToServer(name)
    qtbot.waitUntil(lambda: client.state() is QLocalSocket.LocalSocketState.ConnectedState)
    yield client
    client.abort()


@pytest.fixture
def raised() -> list[str]:
    return []


@pytest.fixture
def first(tmp_path: Path, raised: list[str]) -> Iterator[str]:
    """The name of a first instance's server."""
    name = server_name(tmp_path)
    listening = FirstInstance(name, lambda: raised.append("raised"))
    yield name
    listening.close()


def test_a_later_start_raises_the_first_and_hears_so(first: str, raised: list[str], qtbot: QtBot):
    for times in (1, 2):
        with connected(first, qtbot) as client:
            client.write(RAISE)
            qtbot.waitUntil(client.canReadLine)
            assert client.readLine().data() == RAISED
            assert raised == ["raised"] * times


def test_words_may_come_in_pieces(first: str, raised: list[str], qtbot: QtBot):
    with connected(first, qtbot) as client:
        for at in range(len(RAISE)):
            assert raised == []
            client.write(RAISE[at : at + 1])
            client.flush()
        qtbot.waitUntil(lambda: raised == ["raised"])


@pytest.mark.parametrize("said", [b"\n", b"raise \n", b"quit\n", b"x" * 10_000, b"\x00" * len(RAISE)])
def test_whoever_says_anything_else_is_shown_the_door(said: bytes, first: str, raised: list[str], qtbot: QtBot):
    with connected(first, qtbot) as client:
        client.write(said)
        qtbot.waitUntil(lambda: client.state() is QLocalSocket.LocalSocketState.UnconnectedState)
        assert client.readAll().data() == b""
    assert raised == []


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe of Windows ends with its process")
def test_a_dead_ones_socket_is_taken_over(tmp_path: Path, qtbot: QtBot):
    name = server_name(tmp_path)
    path = Path(name)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    assert path.exists()
    heard: list[bool] = []
    listening = FirstInstance(name, lambda: heard.append(True))
    with connected(name, qtbot) as client:
        client.write(RAISE)
        qtbot.waitUntil(lambda: heard == [True])
    assert path.stat().st_mode & 0o077 == 0
    listening.close()
    assert not path.exists()


def test_where_it_cannot_listen_it_says_so_and_nothing_else_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        FirstInstance(str(tmp_path / "no such folder" / SOCKET), lambda: None).close()
    assert "later starts cannot reach this one" in caplog.text


STORY = """
import asyncio, sys, time
from app.ui import single_instance
from app.ui.loop import run
single_instance.PATIENCE_SECONDS = 0.2
async def main(app):
    began = time.monotonic()
    answered = await single_instance.raise_first(sys.argv[1])
    print(answered, time.monotonic() - began >= 0.2)
    return 0
sys.exit(run(main))
"""


def test_a_later_start_waits_a_little_for_a_first_that_does_not_listen_yet(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STORY, str(tmp_path / "nobody")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False True\n", "")


@pytest.mark.parametrize(
    ("home", "platform", "name"),
    [
        ("/home/me/.local/share/Plimsoll", "linux", "/home/me/.local/share/Plimsoll/instance.sock"),
        ("/home/me/" + "x" * 100, "linux", "plimsoll-"),
        ("/home/me/\udcff", "linux", "plimsoll-"),
        ("/home/me", "win32", "plimsoll-"),
    ],
)
def test_the_socket_is_in_the_home_where_its_path_fits(home: str, platform: str, name: str):
    assert server_name(Path(home), platform).startswith(name)


homes = st.lists(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1), min_size=1
).map(lambda parts: PurePosixPath("/", *parts))


@given(homes, homes, st.sampled_from(["linux", "darwin", "win32"]))
def test_homes_have_names_of_their_own_that_every_system_takes(one: PurePosixPath, other: PurePosixPath, platform: str):
    names = [server_name(Path(home), platform) for home in (one, other)]
    assert (names[0] == names[1]) is (Path(one) == Path(other))
    for name in names:
        assert len(name.encode()) <= SOCKET_BYTES
        assert name.startswith("/") or "/" not in name
