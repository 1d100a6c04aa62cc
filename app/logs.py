"""The log: private, bounded, free of keys, and never in the way.

Callers log what happened, never what was said: no text of a prompt or an answer reaches a log.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import sys
import urllib.parse
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from app.paths import PRIVATE_FILE, Home

LOG_BYTES = 5_000_000
"""Size at which a log file is set aside (5 MB)."""
LOG_FILES = 3
"""Log files kept, the current one included."""
SECRET_CHARACTERS = 12
"""Shortest secret that can be registered: shorter ones would black out ordinary words. Ours."""
MARK = "[redacted]"
"""What stands where a secret stood."""
CHILD = "child"
"""The logger of what children print; it has a file of its own and nothing of it reaches ours."""
OURS = ("app", "engines")
"""The loggers that follow the user's level; libraries speak from WARNING on."""

_VALUE = r"""(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s"'&,;]+)"""
_PATTERNS = (
    # Authorization: Bearer abc
    (re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}"), rf"\1\2{MARK}"),
    # api_key=abc, LLAMA_API_KEY: "abc", x-api-key: abc, {"api_key": "abc"}
    (re.compile(rf"(?i)(api[_-]?key[\"']?\s*[=:]\s*){_VALUE}"), rf"\1{MARK}"),
    # --api-key abc
    (re.compile(rf"(?i)(--api-key\s+){_VALUE}"), rf"\1{MARK}"),
    # the hub's tokens and OpenAI-style keys, wherever they stand
    (re.compile(r"\bhf_[A-Za-z0-9]{10,}"), MARK),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), MARK),
)
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""C0 and C1: what could forge a line of the log or steer a terminal."""


class Redactor:
    """Takes secrets out of text: those registered while we run, and whatever looks like one."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._known: re.Pattern[str] | None = None

    def register(self, secret: str) -> None:
        """From now on this secret is redacted, also as it stands in JSON and in a URL.

        Raises ValueError for one shorter than SECRET_CHARACTERS.
        """
        if len(secret) < SECRET_CHARACTERS:
            raise ValueError(f"a secret needs at least {SECRET_CHARACTERS} characters to be redacted")
        self._secrets |= _spellings(secret)
        self._compile()

    def forget(self, secret: str) -> None:
        """The secret is worth nothing any more (a stopped child's key)."""
        self._secrets -= _spellings(secret)
        self._compile()

    def redact(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(MARK, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def _compile(self) -> None:
        longest_first = sorted(self._secrets, key=lambda secret: (-len(secret), secret))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


class LogSetup:
    """The log as it was set up: change its level, close it."""

    redactor: Redactor
    """Register every secret here, and redact with it what goes elsewhere than the log."""

    def __init__(
        self, redactor: Redactor, handlers: tuple[logging.Handler, ...], child: logging.Handler, level: str
    ) -> None:
        self.redactor = redactor
        self._handlers = handlers
        self._child = child
        children = logging.getLogger(CHILD)
        children.addHandler(child)
        children.setLevel(logging.DEBUG)
        children.propagate = False
        self._before = {name: logging.getLogger(name).level for name in ("", *OURS)}
        root = logging.getLogger()
        root.setLevel(logging.WARNING)
        for handler in handlers:
            root.addHandler(handler)
        self.set_level(level)

    def set_level(self, level: str) -> None:
        """``debug``, ``info``, ``warning`` or ``error``; acts at once."""
        for name in OURS:
            logging.getLogger(name).setLevel(level.upper())

    def close(self) -> None:
        """Close the files and leave logging as it was; again does nothing."""
        root = logging.getLogger()
        for handler in self._handlers:
            root.removeHandler(handler)
            handler.close()
        self._handlers = ()
        children = logging.getLogger(CHILD)
        children.removeHandler(self._child)
        children.propagate = True
        self._child.close()
        for name, level in self._before.items():
            logging.getLogger(name).setLevel(level)
        self._before = {}


def setup(home: Home, level: str, console: bool = False, redactor: Redactor | None = None) -> LogSetup:
    """Log to ``home.log_file``, and to stderr with ``console``; what children print to ``home.server_log_file``.

    Never fails: a log that can not be written is one sentence on stderr.
    """
    redactor = redactor or Redactor()
    handlers: list[logging.Handler] = [_PrivateFile(home.log_file)]
    child = _PrivateFile(home.server_log_file)
    if console:
        handlers.append(_Console())
    for handler in (*handlers, child):
        handler.setFormatter(_RedactingFormatter(redactor))
    return LogSetup(redactor, tuple(handlers), child, level)


class _RedactingFormatter(logging.Formatter):
    """Redacts the finished text: message, arguments, exception and stack alike.

    A record stays recognisable: the lines after its first are indented, control characters are spelled out.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        text = self._redactor.redact(super().format(record))
        return text.translate(_CONTROL).replace("\n", "\n    ")


class _Trouble:
    """Says once on stderr why the log is not written; logging would print a traceback for every record."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._said = False

    def say(self, error: BaseException | None) -> None:
        if self._said or sys.stderr is None:  # no stderr: a program without a console on Windows
            return
        self._said = True
        reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else type(error).__name__
        try:
            print(f"The log {self._where} is not complete: {reason}.", file=sys.stderr)  # noqa: T201
        except (OSError, ValueError):
            return  # stderr is gone too (a closed terminal): there is nobody left to tell


class _PrivateFile(RotatingFileHandler):
    """Opened at the first record, 0600 from the start."""

    def __init__(self, path: Path) -> None:
        self._trouble = _Trouble(str(path))
        super().__init__(
            path,
            maxBytes=LOG_BYTES,
            backupCount=LOG_FILES - 1,
            encoding="utf-8",
            errors="backslashreplace",
            delay=True,
        )

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:
            handle = os.open(path, flags, PRIVATE_FILE)
            if sys.platform != "win32" and stat.S_ISREG(os.fstat(handle).st_mode):
                os.fchmod(handle, PRIVATE_FILE)  # one that was there before
            return handle

        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self._trouble.say(sys.exception())

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:  # the disk is still full
            self._trouble.say(error)


class _Console(logging.StreamHandler[TextIO]):
    """The log on stderr, for a run without a display."""

    def __init__(self) -> None:
        super().__init__()
        self._trouble = _Trouble("on stderr")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self._trouble.say(sys.exception())


def _spellings(secret: str) -> set[str]:
    """The secret as it may stand in a text: plain, in JSON, in a URL."""
    return {secret, json.dumps(secret)[1:-1], urllib.parse.quote(secret, safe="", errors="surrogatepass")}
