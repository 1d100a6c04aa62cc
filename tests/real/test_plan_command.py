"""``plan``: the same bytes twice, the process's very command line, another machine replayed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.running import ROOT, Running, chat

pytestmark = pytest.mark.real


def plimsoll(*arguments: str | Path, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "app", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_same_plan_twice_is_the_same_bytes(tmp_path: Path, tiny_models: Path) -> None:
    arguments = ("plan", "hello", "--json", "--home", tmp_path, "--models", tiny_models)
    first = plimsoll(*arguments)
    assert first == plimsoll(*arguments)
    plan = json.loads(first)
    assert {"model", "engine", "argv", "env", "window", "memory", "machine"} == set(plan)
    assert plan["window"] == {
        "planned": 4096,
        "trained": 4096,
        "bound_by": "model",
        "reason": "the model was trained for 4,096 tokens",
    }
    assert plan["env"]["LLAMA_API_KEY"] == "<per spawn>"


async def test_its_command_line_is_exactly_the_process_s(start: Any, tiny_models: Path) -> None:
    app: Running = start()
    async with app.client() as client:
        await client.post("/v1/chat/completions", json=chat("hello"))
    (child,) = app.children()
    plan = json.loads(plimsoll("plan", "hello", "--json", "--home", app.home, "--models", tiny_models))
    raw = Path(f"/proc/{child.pid}/cmdline").read_bytes()
    assert raw.rstrip(b"\0").split(b"\0") == [part.encode() for part in plan["argv"]]
    real = {k: v for k, v in child.environ().items() if plan["env"].get(k) != "<per spawn>"}
    assert real == {k: v for k, v in plan["env"].items() if v != "<per spawn>"}
    assert child.environ()["LLAMA_API_KEY"] not in raw.decode()


def test_another_machine_is_replayed(tmp_path: Path, tiny_models: Path) -> None:
    arguments = ("plan", "hello", "--json", "--home", tmp_path, "--models", tiny_models)
    plan = json.loads(plimsoll(*arguments))
    other = {**plan["machine"], "physical_cores": 16, "llama_server": {**plan["machine"]["llama_server"], "path": "/x"}}
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(other))
    replayed = json.loads(plimsoll(*arguments, "--machine", file))
    assert replayed["argv"][0] == "/x"
    assert replayed["argv"][replayed["argv"].index("-t") + 1] == "15"
    file.write_text(json.dumps(replayed))  # a whole plan serves as well
    assert json.loads(plimsoll(*arguments, "--machine", file)) == replayed


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no machine snapshot"),
        ("[]", "is no machine snapshot"),
        ('{"system": 1}', "machine.system must be a text"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_machine_file_is_a_sentence(tmp_path: Path, tiny_models: Path, text: str | None, sentence: str) -> None:
    file = tmp_path / "machine.json"
    if text is not None:
        file.write_text(text)
    said = plimsoll("plan", "hello", "--home", tmp_path / "h", "--models", tiny_models, "--machine", file, status=2)
    assert sentence in said


def test_a_plan_for_people(tmp_path: Path, tiny_models: Path) -> None:
    said = plimsoll("plan", "hello", "--home", tmp_path, "--models", tiny_models)
    assert "4,096 tokens (the model was trained for 4,096 tokens)" in said
    assert "--alias hello" in said


def test_an_unknown_model_is_a_sentence_with_close_names(tmp_path: Path, tiny_models: Path) -> None:
    assert "hello" in plimsoll("plan", "helo", "--home", tmp_path, "--models", tiny_models, status=2)


def test_models_doctor_and_endpoint(tmp_path: Path, tiny_models: Path) -> None:
    (tmp_path / "broken.gguf").write_text("<html>")
    shared = ("--json", "--home", tmp_path / "home", "--models", tiny_models)
    rows = {row["id"]: row for row in json.loads(plimsoll("models", *shared, "--models", tmp_path))["models"]}
    assert rows["hello"]["trained_context_window"] == 4096
    assert "broken" in rows
    assert rows["broken"]["broken"]
    facts = json.loads(plimsoll("doctor", *shared))
    assert facts["problems"] == []
    assert facts["machine"]["llama_server"]["version"]
    assert "not running" in plimsoll("endpoint", "--home", tmp_path / "home", status=1)


async def test_endpoint_names_the_running_one(start: Any) -> None:
    app: Running = start()
    assert plimsoll("endpoint", "--home", app.home).strip() == app.base_url
    assert json.loads(plimsoll("endpoint", "--json", "--home", app.home)) == app.facts
    assert (app.home / "endpoint.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("prot = 1", "port"),
        ("port = [", "line 1"),
        ('engine = "tpu"', '"mlx"'),
        ('llama_server = "/no/such"', "/no/such"),
    ],
)
def test_bad_settings_are_a_sentence(tmp_path: Path, settings: str, sentence: str) -> None:
    (tmp_path / "settings.toml").write_text(settings)
    status = 1 if "llama_server" in settings else 2
    done = subprocess.run(
        [sys.executable, "-m", "app", "doctor", "--home", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == status
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
