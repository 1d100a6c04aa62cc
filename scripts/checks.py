"""The checks that need no test to run: lint, format, types on three platforms, import rules."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from environment import Venv
from layout import ROOT, VENV
from steps import say

PLATFORMS = ("linux", "win32", "darwin")


@dataclass(frozen=True)
class Check:
    """A name and a command line, run in the repository's root."""

    name: str
    command: tuple[str, ...]


def all_checks(venv: Venv) -> tuple[Check, ...]:
    """Return every check; types are checked for each platform with a cache of its own."""
    python = str(venv.python)
    types = (
        Check(
            f"mypy {platform}",
            (python, "-m", "mypy", "--strict", "--platform", platform, "--cache-dir", f".mypy_cache/{platform}"),
        )
        for platform in PLATFORMS
    )
    return (
        Check("ruff check", (python, "-m", "ruff", "check", ".")),
        Check("ruff format", (python, "-m", "ruff", "format", "--check", ".")),
        *types,
        Check("import rules", (str(venv.program("lint-imports")),)),
    )


def run_checks(checks: Sequence[Check] | None = None, root: Path = ROOT) -> list[str]:
    """Run all checks, one on each core, the later ones too when one fails; return the names of those that failed."""
    with checking(checks, root) as outcome:
        return outcome()


@contextmanager
def checking(checks: Sequence[Check] | None = None, root: Path = ROOT) -> Iterator[Callable[[], list[str]]]:
    """The same beside what the block does: call what it gives for the outcome, which is not said before."""
    wanted = all_checks(Venv(VENV)) if checks is None else checks
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(_run, check, root) for check in wanted]
        yield lambda: [check.name for check, run in zip(wanted, running, strict=True) if not _said(check, run.result())]


def _said(check: Check, outcome: tuple[subprocess.CompletedProcess[str], float]) -> bool:
    """Say how it went; return whether it passed."""
    done, seconds = outcome
    passed = done.returncode == 0
    say(f"{check.name}: {'ok' if passed else 'FAILED'} ({seconds:.1f} s)")
    if not passed:
        say(done.stdout)
    return passed


def _run(check: Check, root: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    started = time.monotonic()
    done = subprocess.run(
        check.command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done, time.monotonic() - started
