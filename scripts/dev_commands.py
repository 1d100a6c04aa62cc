"""The commands of ``dev.py``.

Each brings the checkout to what it needs first; what is there already costs nothing. Options after ``run``, ``test``
and ``bench`` go to the app, to pytest and to the benchmark.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import environment
import fetch_demo_model
import fetch_engine
import system_packages
from app_process import app_command, has_display, run_in_foreground
from checks import checking, run_checks
from client_checks import run_clients
from environment import Venv
from frozen import run_frozen
from layout import BENCH, ROOT, VENV
from steps import run_main, say

USAGE = """usage: python3 scripts/dev.py COMMAND [ARGUMENTS]

  run [APP ARGUMENTS]      set up and start the app in the tray; without a display, the endpoint alone.
                           Relative paths count from the root of the checkout.
  test [PYTEST ARGUMENTS]  set up, then lint, types, import rules and all tests; with arguments only pytest
  lint                     ruff, mypy for Linux, Windows and macOS, import rules
  setup                    what run and test need, and nothing else
  bench [ARGUMENTS]        scripts/bench.py
  clients                  real clients (tests/clients) against the running app
  frozen                   freeze the app (PyInstaller) and see that it runs an MLX model and leaves nothing
"""

BENCH_MISSING = 2
"""The exit status of ``bench`` where there is no benchmark."""
ALONE = ("tests/real", "tests/desktop")
"""Tests that run with the machine to themselves; the others run beside the checks."""


def set_up(level: str, display: bool) -> float:
    """Bring everything that ``run`` (level ``desktop``) or ``test`` needs; return the seconds it took.

    Raises:
        SetupError: the first thing that a person has to put right.
    """
    started = time.monotonic()
    needs = system_packages.needs_for("test" if level == "test" else "run", sys.platform, display)
    system_packages.ensure(needs, "the tests" if level == "test" else "the app")
    environment.set_up(level)
    fetch_engine.fetch()
    fetch_demo_model.fetch()
    seconds = time.monotonic() - started
    say(f"set-up took {seconds:.1f} s")
    return seconds


def run(arguments: Sequence[str]) -> int:
    """Start the app in the foreground; return its exit status."""
    display = has_display(sys.platform, os.environ)
    set_up("desktop", display)
    if not display:
        say("no display here (neither DISPLAY nor WAYLAND_DISPLAY is set): serving without the tray")
    command = app_command(Venv(VENV).python, "run" if display else "serve", arguments)
    return run_in_foreground(command, fetch_demo_model.DEMO.name)


def test(arguments: Sequence[str]) -> int:
    """Check and test; return pytest's status, or 1 after a failed check."""
    setup_s = set_up("test", display=True)
    if arguments:
        return _pytest(arguments)
    started = time.monotonic()
    with checking() as outcome:
        statuses = [_pytest([f"--ignore={folder}" for folder in ALONE])]
        failed = outcome()
    beside_s = time.monotonic() - started
    statuses.append(_pytest(ALONE))
    all_s = time.monotonic() - started
    say(f"set-up {setup_s:.1f} s, checks beside the quick tests {beside_s:.1f} s, with all tests {all_s:.1f} s")
    if failed:
        say(f"failed checks: {', '.join(failed)}")
    return next((status for status in statuses if status), 1 if failed else 0)


def _pytest(arguments: Sequence[str]) -> int:
    return subprocess.run([Venv(VENV).python, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode


def lint(_arguments: Sequence[str]) -> int:
    """Run the checks; return 1 if any failed."""
    environment.set_up("test")
    return 1 if run_checks() else 0


def setup(_arguments: Sequence[str]) -> int:
    """Set up for run and test."""
    set_up("test", display=True)
    return 0


def bench(arguments: Sequence[str]) -> int:
    """Run the benchmark, where there is one."""
    if not BENCH.is_file():
        say(f"there is no {BENCH.relative_to(ROOT)} in this checkout")
        return BENCH_MISSING
    set_up("desktop", display=False)
    return subprocess.run([Venv(VENV).python, BENCH, *arguments], cwd=ROOT, check=False).returncode


def clients(_arguments: Sequence[str]) -> int:
    """Run the real clients; return 1 if any failed."""
    set_up("test", display=True)
    return run_clients(fetch_demo_model.DEMO.name)


def frozen(_arguments: Sequence[str]) -> int:
    """Freeze and check."""
    set_up("test", display=True)
    return run_frozen()


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run,
    "test": test,
    "lint": lint,
    "setup": setup,
    "bench": bench,
    "clients": clients,
    "frozen": frozen,
}
TAKES_ARGUMENTS = frozenset({"run", "test", "bench"})


def main(arguments: Sequence[str]) -> int:
    """Run a command; return its exit status, 2 for one that does not exist."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if name in {"-h", "--help", "help"}:
        say(USAGE)
        return 0
    if name not in COMMANDS or (rest and name not in TAKES_ARGUMENTS):
        say(USAGE if name not in COMMANDS else f"{name} takes no arguments\n\n{USAGE}")
        return 2
    return run_main(lambda: COMMANDS[name](rest))
