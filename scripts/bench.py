"""Measures Plimsoll against the real thing in the same run, as ratios: ``bench.py [MEASURE ...]``.

Runs are interleaved in pairs (A B A B …), medians are printed with the spread (first to third quartile). Nothing
here is asserted: seconds belong to a machine, ratios to the program.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import bench_brake
import bench_gaps
import psutil
from bench_subject import FAST_MODEL, Plimsoll, Streamed, cores_setting, fast_or_real, load_directly, router, stream
from fetch_demo_model import DEMO
from layout import MODELS, ROOT

MODEL = DEMO.name
PAIRS = 20
TINY = "tiny"
FIRST_TOKENS = 25
"""How many first tokens are taken for each pair."""
ANSWER_TOKENS = 64
FAST_CHUNKS = 20_000
IDLE_SECONDS = 60


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    value: str
    spread: str = ""


def spread(values: Sequence[float], unit: str, digits: int = 1) -> tuple[str, str]:
    """Median, and first to third quartile."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} {unit}".strip(), f"{low:.{digits}f} to {high:.{digits}f}"


def relay(pairs: int) -> list[Row]:
    """A streamed answer straight from llama-server, through us, and through llama.cpp's own router, in mixed order.

    The first token is asked of a tiny model, which answers at once: what a relay adds is the same for any model, and
    with a real one it drowns in the model's own spread.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{MODEL}.gguf").hardlink_to(MODELS / f"{MODEL}.gguf")
        maker = (sys.executable, "-m", "tests.fixtures.tiny_gguf", f"{folder}/{TINY}.gguf")
        subprocess.run(maker, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with Plimsoll(Path(folder), cores_setting()) as app:
            totals = _three_ways(app, Path(folder), MODEL, pairs, ANSWER_TOKENS)
            firsts = _three_ways(app, Path(folder), TINY, FIRST_TOKENS * pairs, 1)
    direct, ours, peer = ([run.total * 1000 for run in side] for side in totals)
    soonest, our_first, peer_first = ([run.first * 1000 for run in side] for side in firsts)
    return [
        Row("llama-server alone, total", *spread(direct, "ms")),
        Row("through Plimsoll, total", *spread(_over(ours, direct), "×", 3)),
        Row("through llama.cpp's router, total", *spread(_over(peer, direct), "×", 3)),
        Row("llama-server alone, first token of a tiny model", *spread(soonest, "ms", 2)),
        Row("through Plimsoll, first token later by", *spread(_less(our_first, soonest), "ms", 2)),
        Row("through llama.cpp's router, first token later by", *spread(_less(peer_first, soonest), "ms", 2)),
    ]


def _three_ways(
    app: Plimsoll, models: Path, model: str, times: int, tokens: int
) -> tuple[list[Streamed], list[Streamed], list[Streamed]]:
    """Runs of llama-server alone, of ours and of its router; a prompt is new in each round, and known to all three."""
    app.call("POST", f"/api/models/{model}/load")
    direct, argv, environment = app.child(model)
    runs: tuple[list[Streamed], list[Streamed], list[Streamed]] = ([], [], [])
    with router(argv, environment, models) as peer:
        targets = list(zip((direct, app.target, peer), runs, strict=True))
        for number in range(times + 1):  # the first round warms up
            prompt = f"Tell me story number {number}."
            for target in (direct, peer):
                stream(target, model, 1, prompt)
            random.shuffle(targets)
            for target, side in targets:
                side.append(stream(target, model, tokens, prompt))
    for side in runs:
        del side[0]
    return runs


def _over(these: Sequence[float], those: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(these, those, strict=True)]


def _less(these: Sequence[float], those: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(these, those, strict=True)]


def chunks(pairs: int) -> list[Row]:
    """The cost of a chunk, with an upstream that streams as fast as it can."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{FAST_MODEL}.gguf").hardlink_to(MODELS / f"{MODEL}.gguf")
        with Plimsoll(Path(folder), f'llama_server = "{fast_or_real(Path(folder))}"\n') as app:
            app.call("POST", f"/api/models/{FAST_MODEL}/load")
            direct, _, _ = app.child(FAST_MODEL)
            runs = [
                (stream(direct, FAST_MODEL, FAST_CHUNKS), stream(app.target, FAST_MODEL, FAST_CHUNKS))
                for _ in range(pairs)
            ]
    return [
        Row("fast upstream alone", *spread([a.total * 1e6 / a.events for a, _ in runs], "µs a chunk", 2)),
        Row("through Plimsoll", *spread([b.total * 1e6 / b.events for _, b in runs], "µs a chunk", 2)),
    ]


def start(pairs: int) -> list[Row]:
    """From the command to the endpoint, and to the tray where there is a display; beside Python's own start."""
    bare, serving, tray = [], [], []
    for _ in range(pairs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import asyncio"], check=True)
        bare.append((time.perf_counter() - began) * 1000)
        with Plimsoll(MODELS) as app:
            serving.append(app.start_seconds * 1000)
        if os.environ.get("DISPLAY"):
            with Plimsoll(MODELS, command="run") as app:
                tray.append(app.start_seconds * 1000)
    rows = [
        Row("python -c 'import asyncio'", *spread(bare, "ms", 0)),
        Row("start to the endpoint", *spread(serving, "ms", 0)),
        Row("ratio", *spread([b / a for a, b in zip(bare, serving, strict=True)], "×")),
    ]
    return [*rows, Row("start to the endpoint with the tray", *spread(tray, "ms", 0))] if tray else rows


def switch(pairs: int) -> list[Row]:
    """Room for one model, two asked for in turn; beside the load of the same model by llama-server alone."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "two"):
            (Path(folder) / f"{name}.gguf").hardlink_to(MODELS / f"{MODEL}.gguf")
        with Plimsoll(Path(folder), cores_setting()) as app:
            app.call("POST", "/api/models/one/load")
            _, argv, environment = app.child("one")
            alone, switched = [], []
            for number in range(pairs):
                alone.append(load_directly(argv, environment) * 1000)
                wanted = ("two", "one")[number % 2]
                began = time.perf_counter()
                stream(app.target, wanted, 1)
                switched.append((time.perf_counter() - began) * 1000)
    return [
        Row("load by llama-server alone, first token", *spread(alone, "ms", 0)),
        Row("switch by Plimsoll, first token", *spread(switched, "ms", 0)),
        Row("ratio", *spread([b / a for a, b in zip(alone, switched, strict=True)], "×", 3)),
    ]


def idle(pairs: int) -> list[Row]:
    """A minute without a request, with no model loaded; ``pairs`` is not used."""
    command = "run" if os.environ.get("DISPLAY") else "serve"
    with Plimsoll(MODELS, command=command) as app:
        process = psutil.Process(app.process.pid)
        time.sleep(2)
        times, switches = process.cpu_times(), process.num_ctx_switches()
        time.sleep(IDLE_SECONDS)
        spent = process.cpu_times()
        wakes = process.num_ctx_switches().voluntary - switches.voluntary
        resident = process.memory_info().rss
    seconds = spent.user + spent.system - times.user - times.system
    return [
        Row(f"resident memory ({command})", f"{resident / 2**20:.0f} MiB"),
        Row("processor in a minute", f"{seconds * 1000:.0f} ms"),
        Row("wake-ups a second", f"{wakes / IDLE_SECONDS:.1f}"),
    ]


def gaps(pairs: int) -> list[Row]:
    """Lateness of the application's loop with four streams flat out and a model loading; ``pairs`` is not used."""
    late = sorted(asyncio.run(bench_gaps.measure(MODEL)))
    return [
        Row("late by, median", f"{late[len(late) // 2] * 1000:.1f} ms", f"{len(late)} samples"),
        Row("late by, 99th percentile", f"{late[len(late) * 99 // 100] * 1000:.1f} ms"),
        Row("late by, at most", f"{late[-1] * 1000:.1f} ms"),
    ]


def brake(pairs: int) -> list[Row]:
    """A respawn by the memory brake under forced pressure, beside the plain load of the same model just before."""
    runs = [asyncio.run(bench_brake.measure(MODEL)) for _ in range(pairs)]
    return [
        Row("sample to memory given back", *spread([r.freed * 1000 for r in runs], "ms", 0)),
        Row("sample to the smaller child", *spread([r.ready * 1000 for r in runs], "ms", 0)),
        Row("its load beside a plain load", *spread([r.load / r.plain_load for r in runs], "×", 3)),
        Row("memory given back", *spread([(r.before - r.after) / 2**20 for r in runs], "MiB", 0)),
    ]


MEASURES: dict[str, Callable[[int], list[Row]]] = {
    "relay": relay,
    "chunks": chunks,
    "start": start,
    "switch": switch,
    "gaps": gaps,
    "idle": idle,
    "brake": brake,
}


def main(arguments: Sequence[str]) -> int:
    """Measure what is named, or everything; print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"runs of each side (default {PAIRS})")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.measures if name not in MEASURES]
    if unknown or options.pairs < 2:
        parser.error(f"no such measure: {unknown[0]}" if unknown else "at least 2 pairs")
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    for name in options.measures or MEASURES:
        print(f"### {name}\n\n| | median | quartiles |\n| --- | --- | --- |")
        for row in MEASURES[name](options.pairs):
            print(f"| {row.what} | {row.value} | {row.spread} |", flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
