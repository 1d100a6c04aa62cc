"""The folder of one llama-server, ``artifacts/llama-cpp/<cpu|cuda>``: what is in it, does it run, replace it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import stamps
from steps import SetupError

VERSION_TIMEOUT_S = 60
"""For ``llama-server --version``: 0.05 s here; a cold disk and a virus scanner take seconds."""

PROGRAM = "llama-server.exe" if sys.platform == "win32" else "llama-server"


@dataclass(frozen=True)
class EngineFolder:
    """``folder/bin/llama-server``, ``folder/licenses/`` and the stamp ``folder/engine.json``."""

    folder: Path

    @property
    def bin(self) -> Path:
        """Where the program and its libraries lie."""
        return self.folder / "bin"

    @property
    def program(self) -> Path:
        """The llama-server."""
        return self.bin / PROGRAM

    @property
    def stamp(self) -> Path:
        """Where it came from."""
        return self.folder / "engine.json"

    def facts(self) -> dict[str, str | int]:
        """Return what the stamp says; nothing without a program."""
        return stamps.read(self.stamp) if self.program.is_file() else {}

    def version(self) -> str:
        """Start it with ``--version``; return the line it prints.

        Raises:
            SetupError: ``engine``, when it does not run.
        """
        try:
            done = subprocess.run(
                [self.program, "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=VERSION_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SetupError("engine", f"{self.program} does not run: {error}.") from error
        lines = [line for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
        if done.returncode != 0:
            said = " / ".join(lines[-3:]) or "nothing"
            raise SetupError("engine", f"{self.program} ends with status {done.returncode} and says: {said}.")
        return next((line for line in lines if line.startswith("version")), lines[0] if lines else "unknown")

    @contextmanager
    def staged(self) -> Iterator[EngineFolder]:
        """Give an empty folder beside this one to fill; it takes this one's place if the block ends well.

        Raises:
            SetupError: ``engine-in-use``, when the old folder cannot be moved (Windows, while its server runs).
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.folder.name}-", dir=self.folder.parent) as scratch:
            fresh = EngineFolder(Path(scratch) / "fresh")
            fresh.bin.mkdir(parents=True)
            yield fresh
            old = Path(scratch) / "old"
            try:
                if self.folder.exists():
                    self.folder.rename(old)
                fresh.folder.rename(self.folder)
            except OSError as error:
                if old.exists() and not self.folder.exists():
                    old.rename(self.folder)
                raise SetupError(
                    "engine-in-use", f"{self.folder} cannot be replaced ({error}). Stop what runs from it."
                ) from error

    def keep_licences(self, source: Path) -> None:
        """Copy a licence file, or every file of a folder of them, into ``licenses/``."""
        target = self.folder / "licenses"
        target.mkdir(exist_ok=True)
        for file in sorted(source.iterdir()) if source.is_dir() else [source]:
            shutil.copyfile(file, target / file.name)
