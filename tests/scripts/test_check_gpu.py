from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import gpu_checks
import gpu_laboratory
import pytest
from check_gpu import amount, as_json, as_markdown, main
from gpu_checks import Loaded, Row, load_rows, slope_row
from steps import SetupError

from engines.llama_cpp.output import Buffer, ServerOutput
from engines.machine import Machine, ServerProgram
from engines.nvidia.gpu import Gpu
from engines.nvidia.window import card_budget
from engines.plan import LaunchPlan, Memory, Window
from tests.fixtures.facts import facts

MIB, GIB = 1 << 20, 1 << 30
KV, COMPUTE, WEIGHTS, CONTEXT = 8192 * 114_688, 8192 * 1024 + 20 * MIB, 500 * MIB, 400 * MIB
MACHINE = Machine(
    "Linux",
    "x86_64",
    1,
    1,
    llama_server=ServerProgram("/x", "b1", "cuda", "PATH"),
    gpus=(Gpu(0, "GPU-1", "Card", 8 * GIB, (8, 9)),),
)


def child(
    window: int = 8192,
    *,
    kv: int = KV,
    compute: int = COMPUTE,
    context: int = CONTEXT,
    flash: bool | None = True,
    layers: tuple[int, int] | None = (29, 29),
    grown: int | None = None,
) -> Loaded:
    budget = card_budget(facts(), total=8 * GIB, free=None).spent_on(facts(), window)
    bill = {"kv": KV, "compute": window * 1024, "weights": 600_000_000, "projector": 0, "cuda_context": 512 * MIB}
    plan = LaunchPlan(
        "main", "cuda", (), {}, Window(window, 40_960, "user", ""), Memory(sum(bill.values()), bill, budget)
    )
    buffers = (
        Buffer("CUDA0", "model", WEIGHTS),
        Buffer("CPU_Mapped", "model", 80 * MIB),
        Buffer("CUDA0", "KV", kv),
        Buffer("CUDA0", "compute", compute),
        Buffer("CUDA_Host", "compute", 12 * MIB),
    )
    output = ServerOutput(buffers, flash, layers)
    held = WEIGHTS + kv + compute + 12 * MIB + context
    return Loaded(plan, output, held, 2 * GIB, window, 1.0, grown)


def off(rows: list[Row]) -> set[str]:
    return {row.what for row in rows if row.ok is False}


def test_a_load_as_planned_is_all_well() -> None:
    assert off(load_rows("main", child(grown=100 * MIB), dry=False)) == set()


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (child(kv=KV + MIB), {"KV cache"}),
        (replace(child(), allocated=4096), {"window"}),
        (child(compute=COMPUTE + GIB), {"on the card", "constant part of the compute buffer, at most"}),
        (child(context=700 * MIB), {"CUDA context, at most"}),
        (child(flash=False), {"Flash Attention"}),
        (child(flash=None), {"Flash Attention"}),
        (child(layers=(20, 29)), {"all layers on the card"}),
        (child(grown=2 * GIB), {"growth during a prompt, at most"}),
        (replace(child(), held=None), {"on the card", "CUDA context, at most"}),
    ],
)
def test_a_number_that_is_off_is_named(found: Loaded, what: set[str]) -> None:
    assert off(load_rows("main", found, dry=False)) == what


def test_a_dry_run_judges_nothing_of_a_card() -> None:
    assert off(load_rows("main", child(flash=False, layers=None, context=GIB), dry=True)) == set()


@pytest.mark.parametrize(("more", "ok"), [(4096 * 1024, True), (0, True), (4096 * 1024 + MIB, False)])
def test_the_slope_of_the_compute_buffer_is_at_most_ours(more: int, ok: bool) -> None:
    found = [child(4096, compute=5 * MIB), child(8192, compute=5 * MIB + more)]
    assert slope_row("main", facts(), found, dry=False).ok is ok


def test_the_report_shows_what_is_off_and_what_was_not_judged() -> None:
    rows = [
        Row("card", "memory", None, float(8 * GIB), "B", True),
        Row("sized", "window", 8192, 4096, "tokens", False),
        Row("sized", "placement", "full", None, "", None),
    ]
    report = as_markdown(rows, MACHINE, dry=True, seconds=61.4)
    assert report.startswith("Dry run, nothing of a card is proven. llama-server b1; Linux x86_64, Card\n")
    assert "| sized | window | 8,192 tokens | 4,096 tokens | **off** |" in report
    assert "| sized | placement | full | – | not judged |" in report
    assert report.endswith("3 checks, 1 off, 1 not judged, 61 s.")
    assert json.loads(as_json(rows, MACHINE, dry=True))["rows"][1]["ok"] is False
    assert amount(1.25, "s") == "1.2 s"


def test_without_a_card_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_laboratory.Nvml, "of_this_system", lambda: gpu_laboratory.Nvml(None))
    assert main([]) == 1
    assert "There is no one card to check: the Python package nvidia-ml-py is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(("listed", "built"), [([True], 0), ([False, True], 1)])
def test_a_server_without_cuda_code_is_replaced_by_one_built_for_the_card(
    monkeypatch: pytest.MonkeyPatch, listed: list[bool], built: int
) -> None:
    builds: list[tuple[str, tuple[str, ...]]] = []
    monkeypatch.setattr(gpu_laboratory, "find_server", lambda **_: ServerProgram("/x", "b1", "cuda", "bundled"))
    monkeypatch.setattr(gpu_laboratory, "sees_cuda", lambda _: listed.pop(0))
    monkeypatch.setattr(gpu_laboratory, "build", lambda flavour, extra: builds.append((flavour, extra)))
    gpu_laboratory.cuda_server(MACHINE.gpus[0])
    assert builds == [("cuda", ("-DCMAKE_CUDA_ARCHITECTURES=89",))] * built


def test_a_build_that_does_not_see_the_card_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_laboratory, "find_server", lambda **_: ServerProgram("/x", "b1", "cuda", "bundled"))
    monkeypatch.setattr(gpu_laboratory, "sees_cuda", lambda _: False)
    monkeypatch.setattr(gpu_laboratory, "build", lambda *_: None)
    with pytest.raises(SetupError, match="lists no CUDA device"):
        gpu_laboratory.cuda_server(MACHINE.gpus[0])
    with pytest.raises(SetupError, match="compute capability"):
        gpu_laboratory.cuda_server(replace(MACHINE.gpus[0], compute_capability=None))


@pytest.mark.parametrize(
    ("said", "seen"),
    [("Available devices:\n  CUDA0: Card (8188 MiB)\n", True), ("Available devices:\n", False)],
)
def test_the_list_of_devices_tells(monkeypatch: pytest.MonkeyPatch, said: str, seen: bool) -> None:
    monkeypatch.setattr(gpu_laboratory.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    assert gpu_laboratory.sees_cuda("/x") is seen


@pytest.mark.real
def test_the_dry_run_runs_all_of_it_here(tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(gpu_checks, "DRY_WINDOWS", (4096, 8192))
    assert main(["--dry", "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["dry"]
    assert {row["part"] for row in report["rows"]} == {
        *("card", "main 4,096", "main 8,192", "main", "plain 4,096", "plain 8,192", "plain"),
        *("sized", "respawn", "partial", "out of memory"),
    }
    assert "Dry run, nothing of a card is proven." in capsys.readouterr().out
