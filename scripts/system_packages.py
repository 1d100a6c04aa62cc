"""What the app and its tests need from the operating system: a table, a look, and the command that brings the rest.

Linux only; Windows and macOS need nothing that pip does not bring.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from steps import SetupError, run_step, say

Kind = Literal["library", "program", "fonts"]


@dataclass(frozen=True)
class Need:
    """One thing: a shared library by its soname, a program by its name, or fonts; and Debian's package of it."""

    kind: Kind
    name: str
    debian: str


@dataclass(frozen=True)
class Host:
    """What decides how missing packages can come: the system, its package tool, and our rights."""

    system: str
    """`sys.platform`: ``linux``, ``darwin``, ``win32``."""
    debian: bool
    """A Debian family system with apt-get."""
    dnf: bool
    root: bool


ENGINE = (
    Need("library", "libgomp.so.1", "libgomp1"),
    Need("library", "libstdc++.so.6", "libstdc++6"),
)
"""What the prebuilt llama-server links against."""

DESKTOP = (
    Need("library", "libxcb-cursor.so.0", "libxcb-cursor0"),
    Need("library", "libxkbcommon-x11.so.0", "libxkbcommon-x11-0"),
    Need("library", "libxcb-icccm.so.4", "libxcb-icccm4"),
    Need("library", "libxcb-image.so.0", "libxcb-image0"),
    Need("library", "libxcb-keysyms.so.1", "libxcb-keysyms1"),
    Need("library", "libxcb-randr.so.0", "libxcb-randr0"),
    Need("library", "libxcb-render-util.so.0", "libxcb-render-util0"),
    Need("library", "libxcb-shape.so.0", "libxcb-shape0"),
    Need("library", "libxcb-xinerama.so.0", "libxcb-xinerama0"),
    Need("library", "libxcb-xkb.so.1", "libxcb-xkb1"),
    Need("library", "libEGL.so.1", "libegl1"),
    Need("library", "libGL.so.1", "libgl1"),
    Need("library", "libfontconfig.so.1", "libfontconfig1"),
    Need("library", "libdbus-1.so.3", "libdbus-1-3"),
    Need("library", "libglib-2.0.so.0", "libglib2.0-0"),
    Need("fonts", "any TrueType font", "fonts-dejavu-core"),
)
"""What Qt's xcb platform plugin loads; it does not start without every one of these."""

DESKTOP_TESTS = (
    Need("program", "Xvfb", "xvfb"),
    Need("program", "trayer", "trayer"),
    Need("program", "openbox", "openbox"),
    Need("program", "xdotool", "xdotool"),
    Need("program", "import", "imagemagick"),
    Need("program", "dbus-daemon", "dbus"),
)
"""The desktop that the tests start for themselves."""

FONT_FOLDERS = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"))
APT_INSTALL = ("apt-get", "install", "-y", "--no-install-recommends")


def read_host() -> Host:
    """Look at this machine."""
    return Host(
        system=sys.platform,
        debian=shutil.which("apt-get") is not None and Path("/etc/debian_version").exists(),
        dnf=shutil.which("dnf") is not None,
        root=sys.platform != "win32" and os.geteuid() == 0,
    )


def needs_for(level: str, system: str, display: bool) -> tuple[Need, ...]:
    """Return what ``run`` (with or without a display) or ``test`` needs on ``system``."""
    if system != "linux":
        return ()
    if level == "test":
        return ENGINE + DESKTOP + DESKTOP_TESTS
    return ENGINE + (DESKTOP if display else ())


def present(need: Need) -> bool:
    """Say whether this machine has it. A library is there when the loader loads it: no package tool is asked."""
    if need.kind == "program":
        return shutil.which(need.name) is not None
    if need.kind == "fonts":
        return any(next(folder.rglob("*.[to]tf"), None) for folder in FONT_FOLDERS)
    try:
        ctypes.CDLL(need.name)
    except OSError:
        return False
    return True


def command_for(host: Host, missing: Sequence[Need]) -> tuple[str, ...] | None:
    """Return the command that brings what is missing, without sudo; None where we know no package tool."""
    if host.debian:
        return (*APT_INSTALL, *(need.debian for need in missing))
    if host.dnf:  # dnf finds packages by what they provide: a soname or the path of a program
        named = {"library": "{}()(64bit)", "program": "/usr/bin/{}", "fonts": "dejavu-sans-fonts"}
        return ("dnf", "install", "-y", *(named[need.kind].format(need.name) for need in missing))
    return None


def sentence(host: Host, missing: Sequence[Need], purpose: str) -> str:
    """Say what is missing and what brings it."""
    names = ", ".join(need.name for need in missing)
    command = command_for(host, missing)
    if command is None:
        packages = " ".join(need.debian for need in missing)
        return f"Missing for {purpose}: {names}. Install with your package tool (Debian's names: {packages})."
    prefix = "" if host.root else "sudo "
    return f"Missing for {purpose}: {names}. Install with: {prefix}{shlex.join(command)}"


def bring(host: Host, packages: Sequence[str], reason: str) -> None:
    """Install Debian packages when we are root there.

    Raises:
        SetupError: ``system-packages``, with the command to run, when we may not or it failed.
    """
    if not (host.debian and host.root):
        raise SetupError("system-packages", f"{reason}. Install with: sudo {shlex.join((*APT_INSTALL, *packages))}")
    say(f"{reason}: installing {' '.join(packages)}")
    run_step(["apt-get", "update", "-qq"], "system-packages", "Reading Debian's package lists")
    silent = ("env", "DEBIAN_FRONTEND=noninteractive")
    run_step([*silent, *APT_INSTALL, "-qq", *packages], "system-packages", "Installing Debian's packages")


def ensure(
    needs: Sequence[Need],
    purpose: str,
    host: Host | None = None,
    has: Callable[[Need], bool] = present,
    installer: Callable[[Host, Sequence[str], str], None] = bring,
) -> bool:
    """See that everything in ``needs`` is there; return whether anything had to come.

    Raises:
        SetupError: ``system-packages``, naming what is missing and the command that brings it.
    """
    missing = [need for need in needs if not has(need)]
    if not missing:
        return False
    host = host or read_host()
    if not (host.debian and host.root):
        raise SetupError("system-packages", sentence(host, missing, purpose))
    installer(host, [need.debian for need in missing], f"Missing for {purpose}: {', '.join(n.name for n in missing)}")
    if still := [need for need in missing if not has(need)]:
        raise SetupError("system-packages", "Installed, and still not found. " + sentence(host, still, purpose))
    return True
