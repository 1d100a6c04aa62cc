from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from calibrate import as_json, as_markdown
from calibration import Measured, Row, child_rows, embedder_row, slope_row
from layout import ROOT

from engines.artifact.facts import ModelKind
from engines.llama_cpp.output import Buffer, ServerOutput
from engines.machine import Machine, ServerProgram
from engines.memory.cost import compute_bytes
from engines.memory.prediction import predict
from engines.plan import LaunchPlan, Window
from tests.fixtures.facts import facts

MIB = 1 << 20
KV = 8192 * 114_688
COPY = 3 * MIB
MACHINE = Machine(
    "Linux", "x86_64", 1, 1, llama_server=ServerProgram("/x", "b1", "cpu", "PATH"), cpu_features=("avx2",)
)


def child(window: int = 8192, *, kv: int = KV, compute: int = 0, held: int | None = None) -> Measured:
    memory = predict(facts(), window, COPY)
    plan = LaunchPlan("tiny", "cpu", (), {}, Window(window, 40_960, "user", ""), memory)
    buffers = (
        Buffer("CPU_REPACK", "model", COPY),
        Buffer("CPU", "KV", kv),
        Buffer("CPU", "compute", compute),
    )
    return Measured("tiny", plan, ServerOutput(buffers, flash_attention=True), held or memory.predicted, window)


def off(rows: list[Row]) -> set[str]:
    return {row.what for row in rows if not row.ok}


def test_numbers_that_agree_are_all_well():
    assert off(child_rows(child())) == set()


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (child(kv=KV + MIB), "KV cache"),
        (child(held=4 << 30), "anonymous at load"),
        (replace(child(), allocated=4096), "window"),
        (replace(child(), allocated=None), "window"),
    ],
)
def test_a_number_that_is_off_is_named(found, what):
    assert off(child_rows(found)) == {what}


def test_a_server_that_says_nothing_is_off_everywhere_but_in_what_the_system_says():
    silent = replace(child(), output=ServerOutput())
    assert off(child_rows(silent)) == {"KV cache", "copy of the weights", "Flash Attention"}


@pytest.mark.parametrize(("more", "ok"), [(4096 * 1024, True), (4096 * 1024 + MIB, False)])
def test_the_slope_of_the_compute_buffer(more, ok):
    found = [child(8192, compute=5 * MIB + more), child(4096, compute=5 * MIB)]
    assert slope_row(found, "compute", 1024).ok is ok


@pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.8, True), (0.7, False), (1.1, False)])
def test_an_embedder_uses_most_of_what_is_predicted_and_no_more(share, ok):
    model = facts(kind=ModelKind.EMBEDDING)
    ours = compute_bytes(model, 8192) - compute_bytes(model, 4096)
    assert embedder_row([child(4096), child(8192, compute=int(share * ours))], model).ok is ok


def test_the_report_for_people_and_for_programs():
    rows = [*child_rows(child(kv=KV + MIB)), Row("tiny", 4096, "compute", 1024, None, "B a token", ok=False)]
    text = as_markdown(rows, MACHINE)
    assert "llama-server b1; Linux x86_64, avx2" in text
    assert "| tiny | 8,192 | KV cache | 896.00 MiB | 897.00 MiB | **off** |" in text
    assert "| tiny | 4,096 | compute | 1,024 B a token | unknown | **off** |" in text
    assert text.endswith("6 numbers, 2 off.")
    assert len(json.loads(as_json(rows, MACHINE))["rows"]) == 6


def test_without_a_server_it_says_what_to_do(tmp_path):
    done = subprocess.run(
        [sys.executable, "scripts/calibrate.py"],
        cwd=ROOT,
        env={"PATH": "/nowhere", "PLIMSOLL_LLAMA_SERVER": str(tmp_path / "none")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "The llama-server named by the environment is not a program" in done.stderr
    assert "Traceback" not in done.stderr
