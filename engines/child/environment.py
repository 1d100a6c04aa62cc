"""The environment of a child: built, never inherited.

Stray ``LLAMA_*`` variables change children, a malformed one kills them, and a ``llama.cpp/config.ini`` in the user's
config folder applies before the command line (all seen). So a child gets an allow-list and an empty config folder.
"""

from __future__ import annotations

from collections.abc import Mapping

from engines.child.ledger import MARKER
from engines.plan import PER_SPAWN

KEY = "LLAMA_API_KEY"
PORT = "LLAMA_ARG_PORT"
LIFELINE = "LLAMA_SERVER_ROUTER_PORT"
"""Set to anything, with a pipe on stdin, it makes a llama-server report its load and end at the end of stdin."""


def planned_environment(inherited: Mapping[str, str], config_folder: str) -> dict[str, str]:
    """The environment as a plan shows it; ``fill`` puts in what each spawn gets anew."""
    return {
        **{name: inherited[name] for name in sorted(inherited)},
        "XDG_CONFIG_HOME": config_folder,
        "APPDATA": config_folder,
        KEY: PER_SPAWN,
        PORT: PER_SPAWN,
        LIFELINE: PER_SPAWN,
        MARKER: PER_SPAWN,
    }


def fill(planned: Mapping[str, str], *, key: str, port: int, marker: str) -> dict[str, str]:
    """The environment of one spawn."""
    return {**planned, KEY: key, PORT: str(port), LIFELINE: str(port), MARKER: marker}
