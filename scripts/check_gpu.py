"""Check the CUDA engine on this machine's NVIDIA card: ``python scripts/check_gpu.py [--json FILE]``.

Builds a llama-server for the card where none has CUDA code, makes models, loads them at several windows, compares the
card's memory with what was predicted, forces an out-of-memory load, checks placement and pinning. Prints a table and
JSON; ends with 1 when something is off. Under 12 minutes, the build included (on 16 cores). ``--dry`` runs all of it
without a card: a fake NVML and this machine's llama-server; what needs a card is then shown, and not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from layout import ROOT
from steps import SetupError, say

if TYPE_CHECKING:
    from gpu_checks import Row

    from engines.machine import Machine

MIB = 1024**2
GIB_OF_MODEL = 2.0
DRY_GIB = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and report; 0 when nothing is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="without a card")
    parser.add_argument("--gib", type=float, help=f"size of the model (default: {GIB_OF_MODEL}; dry: tiny)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there instead of printing it")
    given = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))

    from gpu_checks import check
    from gpu_laboratory import laboratory

    from engines.errors import EngineError

    async def work() -> tuple[list[Row], Machine]:
        size = given.gib if given.gib is not None else DRY_GIB if given.dry else GIB_OF_MODEL
        async with laboratory(dry=given.dry, gib=size) as lab:
            return await check(lab), lab.machine

    began = time.monotonic()
    try:
        rows, machine = asyncio.run(work())
    except (EngineError, SetupError) as error:
        print(f"error: {error}", file=sys.stderr)
        if tail := getattr(error, "tail", ""):
            print(tail, file=sys.stderr)
        return 1
    say(as_markdown(rows, machine, dry=given.dry, seconds=time.monotonic() - began))
    text = as_json(rows, machine, dry=given.dry)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")
    else:
        say("\n" + text)
    return 1 if any(row.ok is False for row in rows) else 0


def as_markdown(rows: Sequence[Row], machine: Machine, *, dry: bool, seconds: float) -> str:
    """The report for people. Pure."""
    server = machine.llama_server
    cards = ", ".join(gpu.name for gpu in machine.gpus)
    table = "\n".join(
        f"| {row.part} | {row.what} | {amount(row.ours, row.unit)} | {amount(row.found, row.unit)} | {judged(row)} |"
        for row in rows
    )
    off = sum(row.ok is False for row in rows)
    kind = "Dry run, nothing of a card is proven. " if dry else ""
    return (
        f"{kind}llama-server {server.version if server else 'unknown'}; {machine.system} {machine.architecture},"
        f" {cards}\n\n| part | what | ours | found | holds |\n| --- | --- | ---: | ---: | --- |\n{table}\n\n"
        f"{len(rows)} checks, {off or 'none'} off, {sum(row.ok is None for row in rows)} not judged,"
        f" {seconds:.0f} s."
    )


def as_json(rows: Sequence[Row], machine: Machine, *, dry: bool) -> str:
    """The report for programs. Pure."""
    return json.dumps({"dry": dry, "machine": machine.to_json(), "rows": [asdict(row) for row in rows]}, indent=2)


def amount(value: float | str | None, unit: str) -> str:
    """A number with its unit, or a text as it is."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if unit == "B":
        return f"{value / MIB:,.2f} MiB"
    return f"{value:,.1f} {unit}" if unit == "s" else f"{value:,.0f} {unit}".strip()


def judged(row: Row) -> str:
    """Whether it holds."""
    return "not judged" if row.ok is None else "yes" if row.ok else "**off**"


if __name__ == "__main__":
    sys.exit(main())
