"""One instance for each home: a later start has the first one show itself.

The home's lock says who is first; what is here is only how the others reach it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtNetwork import QLocalServer, QLocalSocket

RAISE, RAISED = b"raise\n", b"raised\n"
"""All that is ever said: the question of a later start, and the first one's answer."""

SOCKET = "instance.sock"
"""In the home, where only its owner can reach it."""

SOCKET_BYTES = 90
"""Longest path of the socket. ``sockaddr_un`` holds 104 on macOS, and Qt makes it in a folder beside (ours)."""

DIGITS = 16
"""Hexadecimal digits of the home's digest in a name: 64 bits."""

PATIENCE_SECONDS = 2.0
"""For the first one to listen: it holds the lock for about a second before it does (measured), twice that."""

RETRY_SECONDS = 0.05
"""Between two tries to reach it (ours)."""

ANSWER_SECONDS = 5.0
"""For the first one to answer, which is at once unless its machine is paging (ours)."""

log = logging.getLogger(__name__)


class FirstInstance(QObject):
    """Listens for later starts. Make it only while holding the home's lock: it takes a dead one's socket away."""

    def __init__(self, name: str, raised: Callable[[], None], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._raised = raised
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._connected)
        QLocalServer.removeServer(name)
        if not self._server.listen(name):
            log.warning("later starts cannot reach this one: %s", self._server.errorString())

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    def _connected(self) -> None:
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.disconnected.connect(socket.deleteLater)
            socket.readyRead.connect(partial(self._heard, socket))
            self._heard(socket)

    def _heard(self, socket: QLocalSocket) -> None:
        if not socket.canReadLine():
            if socket.bytesAvailable() >= len(RAISE):
                socket.abort()  # whatever it is, it is none of ours
            return
        if socket.readLine().data() == RAISE:
            socket.write(RAISED)
            self._raised()
        socket.disconnectFromServer()


def server_name(home: Path, platform: str = sys.platform) -> str:
    """The name of the first instance's server: a socket in the home where one fits, else derived from its path."""
    if platform != "win32" and _fits(socket := str(home / SOCKET)):
        return socket
    return f"plimsoll-{hashlib.sha256(os.fsencode(home)).hexdigest()[:DIGITS]}"


def _fits(socket: str) -> bool:
    try:
        return len(socket.encode()) <= SOCKET_BYTES
    except UnicodeEncodeError:  # a path that is no text: Qt takes none such
        return False


async def raise_first(name: str) -> bool:
    """Have the first instance show itself; False where none answers (it has no desktop, or is just ending)."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_SECONDS
    while True:
        if await _ask(name):
            return True
        if loop.time() >= end:
            return False
        await asyncio.sleep(RETRY_SECONDS)


async def _ask(name: str) -> bool:
    answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def settle(answer: bool) -> None:
        if not answered.done():
            answered.set_result(answer)

    socket = QLocalSocket()
    socket.connected.connect(lambda: socket.write(RAISE))
    socket.readyRead.connect(lambda: settle(True))
    socket.errorOccurred.connect(lambda _: settle(False))
    try:
        socket.connectToServer(name)
        return await asyncio.wait_for(answered, ANSWER_SECONDS)
    except TimeoutError:
        return False
    finally:
        socket.abort()
