"""How a model is run. Knows no user interface, serves no HTTP, keeps no database, and never imports ``app``.

The face of the package: ``select_engine`` says which engine and why, ``open_engine`` makes it.
"""

from __future__ import annotations

from engines.engine import Child, ChildFacts, Engine, Progress
from engines.errors import ChildLost, EngineError, EngineUnavailable, LoadError
from engines.machine import Machine, ServerProgram, read_machine
from engines.plan import LaunchPlan, LaunchSettings, Memory, Window
from engines.select import Choice, EngineName
from engines.select import select as select_engine
from engines.workshop import Parts, open_engine

__all__ = [
    "Child",
    "ChildFacts",
    "ChildLost",
    "Choice",
    "Engine",
    "EngineError",
    "EngineName",
    "EngineUnavailable",
    "LaunchPlan",
    "LaunchSettings",
    "LoadError",
    "Machine",
    "Memory",
    "Parts",
    "Progress",
    "ServerProgram",
    "Window",
    "open_engine",
    "read_machine",
    "select_engine",
]
