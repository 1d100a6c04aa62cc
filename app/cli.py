"""The command line: run, serve, plan, doctor, models, endpoint."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from app import __version__

USAGE_ERROR = 2
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    everywhere = argparse.ArgumentParser(add_help=False)
    everywhere.add_argument("--home", type=Path, metavar="DIR", help="keep everything of this run in DIR")
    everywhere.add_argument(
        "--models",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="also look for models in DIR (repeatable)",
    )
    facts = argparse.ArgumentParser(add_help=False)
    facts.add_argument("--json", action="store_true", help="print facts as JSON")

    top = argparse.ArgumentParser(
        prog="plimsoll", description="Local language models up to the load line of the machine."
    )
    top.add_argument("--version", action="version", version=f"plimsoll {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser("run", parents=[everywhere], help="start in the tray (what no command does, too)")
    serve = commands.add_parser("serve", parents=[everywhere], help="start without a display")
    for command in (run, serve):
        command.add_argument("--log", action="store_true", help="also print the log")
    plan = commands.add_parser("plan", parents=[everywhere, facts], help="show how a model would be launched")
    plan.add_argument("model", metavar="MODEL")
    plan.add_argument("--machine", type=Path, metavar="FILE", help="plan for the machine of an earlier plan --json")
    commands.add_parser("doctor", parents=[everywhere, facts], help="show what was found and what is wrong")
    commands.add_parser("models", parents=[everywhere, facts], help="list the models of this machine")
    commands.add_parser("endpoint", parents=[everywhere, facts], help="show where the running one serves")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status. A failure is a sentence on stderr, never a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given or ["run"])
    if options.command is None:
        parser().print_help()
        return USAGE_ERROR
    from app import commands

    try:
        return commands.run_command(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 1
    except Exception as error:
        sentence = getattr(error, "sentence", None)
        if sentence is None:
            raise
        print(f"plimsoll: {sentence}", file=sys.stderr)  # noqa: T201
        return USAGE_ERROR
