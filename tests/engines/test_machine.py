"""The machine snapshot: read, written, read again."""

from __future__ import annotations

import json
import sys

import psutil
import pytest

from engines.machine import Machine, ServerProgram, read_machine


def test_a_snapshot_survives_json() -> None:
    machine = Machine(
        "Linux", "x86_64", 1 << 34, 4, nvidia_gpus=1, llama_server=ServerProgram("/x", "1", "cpu", "bundled")
    )
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ram_bytes": "lots"}, "machine.ram_bytes must be a whole number"),
        ({"system": None}, "machine.system must be a text"),
        ({"cores": 4}, "machine.cores is not a key"),
        ({"llama_server": {"path": "x"}}, "machine.llama_server"),
    ],
)
def test_a_bad_snapshot_names_its_key(change: dict[str, object], sentence: str) -> None:
    good = Machine("Linux", "x86_64", 1, 1).to_json()
    with pytest.raises(ValueError, match=sentence):
        Machine.from_json({**good, **change})


def test_this_machine_is_read_and_only_the_allow_list_of_its_environment() -> None:
    machine = read_machine(
        look_for_gpus=True, environment={"PATH": "/bin", "LLAMA_ARG_CTX_SIZE": "8", "HTTPS_PROXY": "x"}
    )
    assert machine.ram_bytes == psutil.virtual_memory().total
    assert machine.environment == {"PATH": "/bin"}
    assert machine.physical_cores >= 1


def test_without_a_look_for_gpus_no_gpu_library_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_machine(look_for_gpus=False, environment={}).nvidia_gpus is None
