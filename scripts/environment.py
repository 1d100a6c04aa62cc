"""Virtual environments filled from lock files, and downloads pinned by them. Standard library only."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import stamps
import system_packages
from layout import DESKTOP_LOCK, TEST_LOCK, VENV
from steps import SetupError, run_step, say

LEVELS: Mapping[str, Path] = {"desktop": DESKTOP_LOCK, "test": TEST_LOCK}
"""What can be installed into `.venv`, the smaller first; the test lock holds every pin of the desktop lock."""


@dataclass(frozen=True)
class Venv:
    """A virtual environment at ``folder`` and the stamp of what was installed into it."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.program("python")

    @property
    def stamp(self) -> Path:
        """The file that says what was installed."""
        return self.folder / "installed.json"

    def program(self, name: str) -> Path:
        """Return the path of one of its programs."""
        if os.name == "nt":
            return self.folder / "Scripts" / f"{name}.exe"
        return self.folder / "bin" / name

    def python_version(self) -> str | None:
        """Return the version it was made with (``3.11.7``); None when it has to be made (again)."""
        try:
            text = (self.folder / "pyvenv.cfg").read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        config = parse_pyvenv(text)
        base = config.get("executable")
        if not self.python.exists() or (base is not None and not Path(base).exists()):
            return None  # the interpreter under it was removed or replaced by another minor version
        return config.get("version") if usable_version(config.get("version", "")) else None

    def make(self) -> str:
        """Make it where it is missing or broken; return its Python version.

        Raises:
            SetupError: ``venv``, when Python cannot make one.
        """
        if version := self.python_version():
            return version
        ensure_venv_module()
        if self.folder.exists():
            say(f"{self.folder} is broken or of another Python; making it anew")
            shutil.rmtree(self.folder)
        run_step([sys.executable, "-m", "venv", self.folder], "venv", "Making the virtual environment")
        version = self.python_version()
        if version is None:
            raise SetupError("venv", f"{self.folder} was made, but has no working Python; remove it and try again.")
        return version

    def install(self, lock: Path, facts: stamps.Facts) -> None:
        """Install everything in ``lock``, hashes checked, and stamp it with ``facts``."""
        command: list[str | Path] = [self.python, "-m", "pip", "install", *quiet(), "--disable-pip-version-check"]
        self.stamp.unlink(missing_ok=True)
        run_step([*command, "--require-hashes", "-r", lock], "packages", f"Installing {lock.name}")
        stamps.write(self.stamp, facts)


def parse_pyvenv(text: str) -> dict[str, str]:
    """Return the ``key = value`` lines of a ``pyvenv.cfg``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def usable_version(version: str) -> bool:
    """Say whether ``version`` (``3.11.7``) is a Python that the app runs on."""
    parts = version.split(".")
    return len(parts) > 1 and all(p.isdigit() for p in parts[:2]) and (int(parts[0]), int(parts[1])) >= (3, 11)


def quiet() -> list[str]:
    """Return pip's option for silence where nobody watches a progress bar."""
    return [] if sys.stdout.isatty() else ["--quiet"]


def is_current(found: Mapping[str, str | int], level: str, key: str, python: str) -> bool:
    """Say whether a stamp covers ``level``: the same locks, the same Python, this level or a larger one.

    The key covers *all* locks: a level that was installed before another lock changed what is there is not current.
    """
    names = list(LEVELS)
    have = found.get("level")
    same = found.get("locks") == key and found.get("python") == python
    return same and have in names and names.index(str(have)) >= names.index(level)


def set_up(level: str, venv: Venv | None = None) -> bool:
    """Bring ``.venv`` to ``level`` (``desktop`` or ``test``); return whether there was anything to do."""
    venv = venv or Venv(VENV)
    python = venv.make()
    key = stamps.digest_of_files(*LEVELS.values())
    if is_current(stamps.read(venv.stamp), level, key, python):
        return False
    say(f"installing {LEVELS[level].name} into {venv.folder.name} (Python {python})")
    venv.install(LEVELS[level], {"level": level, "locks": key, "python": python})
    return True


def download(lock: Path, folder: Path, options: Sequence[str] = ("--only-binary", ":all:")) -> list[Path]:
    """Download everything pinned in ``lock`` into ``folder``, hashes checked; return the files by name.

    With the default options nothing of what is downloaded runs: wheels only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    venv = Venv(VENV)
    venv.make()
    command: list[str | Path] = [venv.python, "-m", "pip", "download", *quiet(), "--disable-pip-version-check"]
    command += ["--no-deps", *options, "--require-hashes", "-r", lock, "-d", folder]
    run_step(command, "download", f"Downloading what {lock.name} pins")
    return sorted(folder.iterdir())


def ensure_venv_module() -> None:
    """See that this Python can make virtual environments; Debian ships that apart.

    Raises:
        SetupError: ``system-packages`` with the command that brings it, or ``venv`` where there is none.
    """
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return
    host = system_packages.read_host()
    if not (host.debian and sys.base_prefix == "/usr"):
        raise SetupError(
            "venv",
            f"{sys.executable} has no venv and ensurepip. Use a complete Python 3.11 or newer, "
            "from your system's packages or its official installer.",
        )
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    system_packages.bring(host, [package], f"{sys.executable} cannot make virtual environments")
    check = subprocess.run([sys.executable, "-c", "import ensurepip, venv"], check=False)
    if check.returncode != 0:
        raise SetupError("venv", f"{package} is installed, and {sys.executable} still has no ensurepip.")
