"""The graphics cards that a llama-server can use: what its ``--list-devices`` names."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.llama_cpp.binary import VERSION_SECONDS
from engines.machine import INHERITED

log = logging.getLogger(__name__)

DEVICE = re.compile(r"^\s+(\S+): (.+) \((\d+) MiB, (\d+) MiB free\)$", re.MULTILINE)
"""``  Vulkan0: AMD Radeon RX 7600 (RADV NAVI33) (8176 MiB, 8000 MiB free)``"""
VULKAN, CUDA = "Vulkan", "CUDA"
"""What the ids of these backends begin with; ``SYCL0`` and the like are others."""
VISIBLE = "GGML_VK_VISIBLE_DEVICES"
"""The backend's own variable: the numbers of the devices to use."""
SOFTWARE = ("llvmpipe", "lavapipe", "softpipe", "swiftshader", "microsoft basic render")
"""Drivers that compute on the processor, where llama-server alone is far faster (a tiny model: 2,500 tokens/s, with
llvmpipe 55; measured). The backend names them only when its variable asks for them."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One line of ``--list-devices``; memory is bytes."""

    id: str
    name: str
    total: int
    free: int


def parse(text: str) -> tuple[ListedDevice, ...]:
    """Read the output of ``--list-devices``; what is not a device is passed over. Pure."""
    return tuple(
        ListedDevice(found[1], found[2], int(found[3]) * MIB, int(found[4]) * MIB) for found in DEVICE.finditer(text)
    )


def vulkan(devices: Iterable[ListedDevice]) -> tuple[str, ...]:
    """The names of the Vulkan devices. Pure."""
    return tuple(device.name for device in devices if device.id.startswith(VULKAN))


def has_cuda(devices: Iterable[ListedDevice]) -> bool:
    """Whether a build with CUDA code sees a card. Pure."""
    return any(device.id.startswith(CUDA) for device in devices)


def hardware(names: Iterable[str]) -> tuple[str, ...]:
    """The devices that are worth a try: software ones are left out. Pure."""
    return tuple(name for name in names if not name.lower().startswith(SOFTWARE))


def list_devices(path: str | Path, environment: Mapping[str, str] | None = None) -> tuple[ListedDevice, ...]:
    """The devices that the llama-server at ``path`` can use, software ones among them. Blocking, at most 30 s (0.1 s
    measured).

    ``environment``: what the child would inherit. A server that cannot list has none: it is said in the log.
    """
    environ = os.environ if environment is None else environment
    inherited = {name: environ[name] for name in (*INHERITED, VISIBLE) if name in environ}
    try:
        done = subprocess.run(
            [path, "--list-devices"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
            env=inherited,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s cannot list the graphics cards it can use: %s", path, error)
        return ()
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        log.warning(
            "%s cannot list the graphics cards it can use (exit code %d): %s",
            path,
            done.returncode,
            said[-1] if said else "it said nothing",
        )
        return ()
    return parse(done.stdout)
