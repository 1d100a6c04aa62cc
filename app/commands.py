"""What the commands do."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from app import __version__, paths, settings
from app.application import Application, model_folders, on_signals
from app.library.library import Library
from app.library.records import ModelRecord
from app.survey import Options, survey
from engines import LaunchPlan, Machine, Parts, open_engine
from engines.child.ledger import Ledger
from engines.child.probe import TRUSTS_NOBODY

HEALTH_SECONDS = 2.0


class BadInput(Exception):
    """Something on the command line cannot be used; ``sentence`` says what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


def run_command(given: argparse.Namespace) -> int:
    """Do what was asked. Raises errors with a ``sentence``."""
    options = Options(given.home, tuple(given.models), getattr(given, "log", False))
    match given.command:
        case "run":
            return run(options)
        case "serve":
            return asyncio.run(serve(options))
        case "plan":
            return plan(options, given.model, given.machine, as_json=given.json)
        case "doctor":
            return doctor(options, as_json=given.json)
        case "models":
            return models(options, as_json=given.json)
        case _:
            return endpoint(options, as_json=given.json)


def run(options: Options) -> int:
    """In the tray, or headless where there is no display, saying so."""
    reason = no_display()
    if reason is not None:
        say(f"{reason}: serving without a tray.", to_stderr=True)
        return asyncio.run(serve(options))
    from app.desktop import run_in_tray

    return run_in_tray(options)


def no_display() -> str | None:
    """Why there can be no tray; None when there can."""
    try:
        from app.ui.loop import display_is_missing
    except ImportError:
        return "The desktop parts are not installed (pip install 'plimsoll[desktop]')"
    return "There is no display" if display_is_missing(sys.platform, os.environ) else None


async def serve(options: Options) -> int:
    """Serve until a signal comes."""
    async with await Application.open(options) as app:
        on_signals(asyncio.get_running_loop(), app.stop)
        say_ready(app)
        await app.stopping.wait()
    return 0


def plan(options: Options, name: str, machine_file: Path | None, *, as_json: bool) -> int:
    """Print how a model would be launched, with the machine it was planned for."""
    found = survey(options)
    record = _library(model_folders(found.home, found.settings, options)).resolve(
        name, loaded=(), default=found.settings.default_model
    )
    machine = found.machine if machine_file is None else read_machine_file(machine_file)
    engine = open_engine(found.choice, Parts(Ledger(found.home.ledger), found.home.child_config, 0))
    assert record.facts is not None
    launch = engine.plan(record.id, record.facts, machine, found.launch)
    if as_json:
        say(json.dumps({**launch.to_json(), "machine": machine.to_json()}, indent=2))
    else:
        say(plan_text(record, launch))
    return 0


def read_machine_file(path: Path) -> Machine:
    """A machine snapshot, alone or inside what ``plan --json`` printed. Raises ``BadInput``."""
    try:
        data: Any = json.loads(path.read_text("utf-8"))
        if isinstance(data, dict) and "machine" in data:
            data = data["machine"]
        if not isinstance(data, dict):
            raise ValueError("it is not an object")
        return Machine.from_json(data)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise BadInput(
            f"{path} is no machine snapshot: {error}. Make one with `plimsoll plan MODEL --json`."
        ) from error


def plan_text(record: ModelRecord, launch: LaunchPlan) -> str:
    """A plan for people."""
    planned = f"{launch.window.planned:,} tokens" if launch.window.planned is not None else "the server decides"
    predicted = f"{launch.memory.predicted / 2**20:,.0f} MiB" if launch.memory.predicted is not None else "unknown"
    bill = "".join(f"\n    {term:<12}{size / 2**20:>10,.1f} MiB" for term, size in launch.memory.bill.items())
    return (
        f"{record.name} on the {launch.engine} engine\n"
        f"  window   {planned} ({launch.window.reason})\n"
        f"  memory   {predicted} beside the file{bill}\n"
        f"  command  {' '.join(launch.argv)}"
    )


def doctor(options: Options, *, as_json: bool) -> int:
    """Print what was found; status 1 when something keeps models from running."""
    found = survey(options)
    library = _library(model_folders(found.home, found.settings, options))
    whole = [record for record in library.records if record.broken is None]
    problems = [
        *([found.missing_server] if found.missing_server is not None else []),
        *([found.doubt.sentence] if found.doubt is not None else []),
        *library.problems,
        *(f"{record.path.name}: {record.broken}" for record in library.records if record.broken is not None),
        *([] if whole else [f"No model was found. Put a GGUF file into {found.home.models}."]),
    ]
    facts: dict[str, Any] = {
        "version": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "home": str(found.home.root),
        "engine": {"name": found.choice.engine.value, "reason": found.choice.reason},
        "machine": found.machine.to_json(),
        "models": [record.id for record in whole],
        "endpoint": running(found.home),
        "settings": {key.key: {"acts": key.acts, "type": key.type} for key in settings.describe()},
        "problems": problems,
    }
    if as_json:
        say(json.dumps(facts, indent=2))
    else:
        server = found.machine.llama_server
        say(f"Plimsoll {__version__}, Python {facts['python']}, {facts['system']}")
        say(f"Home      {facts['home']}")
        say(f"Engine    {found.choice.engine.value}: {found.choice.reason}")
        say(f"Server    {f'{server.path}, version {server.version} ({server.source})' if server else 'none'}")
        say(f"Memory    {found.machine.ram_bytes / 2**30:.1f} GiB, {found.machine.physical_cores} cores")
        say(f"Models    {', '.join(facts['models']) or 'none'}")
        say(f"Endpoint  {(facts['endpoint'] or {}).get('base_url', 'not running')}")
        for problem in problems:
            say(f"Problem   {problem}")
    return 1 if problems else 0


def models(options: Options, *, as_json: bool) -> int:
    """List the models, broken ones with their reason."""
    home = paths.home(options.home)
    paths.prepare(home)
    library = _library(model_folders(home, settings.load(home.settings), options))
    if as_json:
        rows = [
            {
                "id": r.id,
                "name": r.name,
                "path": str(r.path),
                "size_bytes": r.size_bytes,
                "trained_context_window": r.facts.trained_window if r.facts is not None else None,
                "quantisation": r.facts.quantisation if r.facts is not None else None,
                "capabilities": list(r.capabilities),
                "broken": r.broken,
            }
            for r in library.records
        ]
        say(json.dumps({"models": rows, "problems": list(library.problems)}, indent=2))
        return 0
    for record in library.records:
        window = record.facts.trained_window if record.facts is not None else None
        what = record.broken or f"{record.size_bytes / 1e9:.2f} GB" + (f", {window:,} tokens" if window else "")
        say(f"{record.id}  {what}")
    for problem in library.problems:
        say(problem, to_stderr=True)
    if not library.records:
        say(f"No model was found. Put a GGUF file into {home.models}.", to_stderr=True)
    return 0


def endpoint(options: Options, *, as_json: bool) -> int:
    """Print where the running one serves; status 1 when none does."""
    facts = running(paths.home(options.home))
    if facts is None:
        say("Plimsoll is not running. Start it with `plimsoll run`.", to_stderr=True)
        return 1
    say(json.dumps(facts) if as_json else facts["base_url"])
    return 0


def running(home: paths.Home) -> dict[str, Any] | None:
    """What ``endpoint.json`` says, when its process lives and answers."""
    try:
        facts: dict[str, Any] = json.loads(home.endpoint_file.read_text("utf-8"))
        alive = psutil.pid_exists(int(facts["pid"]))
        url = str(facts["base_url"]).removesuffix("/v1") + "/health"
        if not alive:
            return None
        answer = httpx.get(url, trust_env=False, verify=TRUSTS_NOBODY, timeout=HEALTH_SECONDS)
        return facts if answer.is_success else None
    except (OSError, ValueError, KeyError, TypeError, httpx.HTTPError):
        return None


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print a line at once, also into a pipe."""
    print(text, file=sys.stderr if to_stderr else sys.stdout, flush=True)


def say_ready(app: Application) -> None:
    """The line that programs wait for."""
    say(json.dumps(app.ready_facts()))


def _library(folders: Sequence[Path]) -> Library:
    library = Library(folders)
    asyncio.run(library.rescan())
    return library
