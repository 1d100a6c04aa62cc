"""Hold our memory constants against real llama-servers: ``python scripts/calibrate.py [--json] [MODEL.gguf ...]``.

Starts the llama-server of this machine on tiny models, on the demo model where it is there, and on those named, each
at several windows; reads what it says of its buffers and what the system says of its memory. Prints a report in
Markdown (or JSON), and ends with 1 when a number of ours is off: then another build or processor needs other ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fetch_demo_model import DEMO
from layout import MODELS, ROOT
from steps import say

if TYPE_CHECKING:
    from calibration import Row

    from engines.machine import Machine

MIB = 1024**2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 0 when every number of ours holds, 1 when one is off or nothing can be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    from calibration import calibrate

    from engines.artifact.errors import ArtifactError
    from engines.errors import EngineError

    demo = MODELS / DEMO.file
    try:
        rows, machine = asyncio.run(calibrate([*([demo] if demo.exists() else []), *given.models]))
    except (ArtifactError, EngineError) as error:
        print(f"error: {error.sentence}", file=sys.stderr)
        return 1
    say(as_json(rows, machine) if given.json else as_markdown(rows, machine))
    return 0 if all(row.ok for row in rows) else 1


def as_markdown(rows: Sequence[Row], machine: Machine) -> str:
    """The report for people. Pure."""
    server = machine.llama_server
    table = "\n".join(
        f"| {row.model} | {row.window:,} | {row.what} | {_amount(row.ours, row.unit)} | {_amount(row.server, row.unit)}"
        f" | {'yes' if row.ok else '**off**'} |"
        for row in rows
    )
    off = sum(not row.ok for row in rows)
    return (
        f"llama-server {server.version if server else 'unknown'}; {machine.system} {machine.architecture},"
        f" {', '.join(machine.cpu_features) or 'processor unknown'}\n\n"
        "| model | window | what | ours | the server's | holds |\n"
        f"| --- | ---: | --- | ---: | ---: | --- |\n{table}\n\n"
        f"{len(rows)} numbers, {off or 'none'} off."
    )


def as_json(rows: Sequence[Row], machine: Machine) -> str:
    """The report for programs. Pure."""
    return json.dumps({"machine": machine.to_json(), "rows": [asdict(row) for row in rows]}, indent=2)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "B":
        return f"{value / MIB:,.2f} MiB"
    return f"{value:,.0f} {unit}".strip()


if __name__ == "__main__":
    sys.exit(main())
