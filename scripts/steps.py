"""What set-up says while it works, and the one error it ends in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path


class SetupError(Exception):
    """Something a person has to put right.

    ``code`` names the kind (stable, for tests and scripts); the message says what to do, the command included.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def say(message: str) -> None:
    """Print at once: the lines of the programs started in between must not overtake it."""
    print(message, flush=True)


def run_step(command: Sequence[str | Path], code: str, purpose: str, cwd: Path | None = None) -> None:
    """Run a program with its output on ours.

    Raises:
        SetupError: ``code``, when it cannot start or ends with another status than 0.
    """
    argv = [str(part) for part in command]
    try:
        status = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        raise SetupError(code, f"{purpose}: {argv[0]} does not start ({error}).") from error
    if status != 0:
        raise SetupError(code, f"{purpose} failed with status {status}; its output is above. Command: {' '.join(argv)}")


def run_main(work: Callable[[], int]) -> int:
    """Run a command to its exit status: 1 after a `SetupError`, whose sentence is printed, 130 after Ctrl-C."""
    try:
        return work()
    except SetupError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
