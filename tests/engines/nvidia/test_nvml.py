"""What NVML is asked, and what becomes of each of its failures. The library's calls are faked."""

from __future__ import annotations

import pytest

from engines.machine import read_machine
from engines.nvidia.gpu import Gpu
from engines.nvidia.nvml import NO_LIBRARY, Cards, Nvml, Reading, VideoMemory, load_library
from tests.fixtures.fake_nvml import GIB, Card, FakeNvml

FOUND = Gpu(0, "GPU-11111111-aaaa", "NVIDIA GeForce RTX 4090", 24 * GIB, (8, 9))
UUID = FOUND.uuid


def test_the_cards_are_read_and_nvml_is_closed_again() -> None:
    library = FakeNvml([Card(), Card(uuid="GPU-2", name=b"Tesla", capability=(7, 0), total=16 * GIB)], driver=13_010)
    assert Nvml(library).cards() == Cards(2, (FOUND, Gpu(1, "GPU-2", "Tesla", 16 * GIB, (7, 0))), (13, 1))
    assert library.open == 0
    assert library.calls.count("nvmlInit") == 1


@pytest.mark.parametrize(
    ("failing", "cards"),
    [
        ("nvmlInit", Cards(0, reason="NVML: nvmlInit failed")),
        ("nvmlDeviceGetCount", Cards(0, reason="NVML: nvmlDeviceGetCount failed")),
        ("nvmlDeviceGetHandleByIndex", Cards(1, (), (12, 8), "NVML: nvmlDeviceGetHandleByIndex failed")),
        ("nvmlDeviceGetUUID", Cards(1, (), (12, 8), "NVML: nvmlDeviceGetUUID failed")),
        ("nvmlSystemGetCudaDriverVersion", Cards(1, (FOUND,), None, "NVML: nvmlSystemGetCudaDriverVersion failed")),
        ("nvmlDeviceGetName", Cards(1, (Gpu(0, UUID, "NVIDIA GPU 0", 24 * GIB, (8, 9)),), (12, 8))),
        ("nvmlDeviceGetCudaComputeCapability", Cards(1, (Gpu(0, UUID, FOUND.name, 24 * GIB, None),), (12, 8))),
        ("nvmlDeviceGetMemoryInfo_v2", Cards(1, (FOUND,), (12, 8))),
    ],
)
def test_each_call_of_the_survey_may_fail(failing: str, cards: Cards) -> None:
    library = FakeNvml([Card()], fails=[failing])
    assert Nvml(library).cards() == cards
    assert library.open == 0


def test_a_card_that_does_not_tell_its_memory_is_still_a_card() -> None:
    library = FakeNvml([Card()], fails=["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"])
    assert Nvml(library).cards().gpus == (Gpu(0, UUID, FOUND.name, None, (8, 9)),)


def test_no_card_and_no_library_are_no_gpus_and_no_error() -> None:
    assert Nvml(FakeNvml()).cards() == Cards(0, driver_cuda=(12, 8))
    assert Nvml(None).cards() == Cards(0, reason=NO_LIBRARY)
    assert Nvml(None).memory(UUID) == Reading(None, NO_LIBRARY)


@pytest.mark.parametrize(
    ("binding", "fails", "last_call"),
    [
        (True, (), "nvmlDeviceGetMemoryInfo_v2"),
        (True, ("nvmlDeviceGetMemoryInfo_v2",), "nvmlDeviceGetMemoryInfo"),
        (False, (), "nvmlDeviceGetMemoryInfo"),
    ],
)
def test_memory_is_read_by_version_2_where_it_is(binding: bool, fails: tuple[str, ...], last_call: str) -> None:
    library = FakeNvml([Card(used=4 * GIB)], fails=fails, memory_v2=binding)
    assert Nvml(library).memory(UUID) == Reading(VideoMemory(24 * GIB, 20 * GIB - (512 << 20)))
    assert library.calls[-2:] == [last_call, "nvmlShutdown"]


@pytest.mark.parametrize(
    ("uuid", "fails", "reason"),
    [
        ("GPU-gone", (), "NVML: Not Found"),
        (UUID, ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), "NVML: nvmlDeviceGetMemoryInfo failed"),
        (UUID, ("nvmlInit",), "NVML: nvmlInit failed"),
        (UUID, ("nvmlShutdown",), "NVML: nvmlShutdown failed"),
    ],
)
def test_memory_that_cannot_be_read_is_none_with_the_reason(uuid: str, fails: tuple[str, ...], reason: str) -> None:
    assert Nvml(FakeNvml([Card()], fails=fails)).memory(uuid) == Reading(None, reason)


@pytest.mark.parametrize(
    ("held", "pid", "read"),
    [
        ({7: 3 * GIB, 8: GIB}, 7, Reading(3 * GIB)),
        ({8: GIB}, 7, Reading(None, "NVML does not tell")),
        ({7: None}, 7, Reading(None, "NVML does not tell")),
    ],
)
def test_what_one_process_holds(held: dict[int, int | None], pid: int, read: Reading[int]) -> None:
    assert Nvml(FakeNvml([Card(held=held)])).process_bytes(UUID, pid) == read


def test_the_real_library_answers_without_a_driver_too() -> None:
    library = load_library()
    assert library is not None
    cards = Nvml(library).cards()
    assert cards.count >= len(cards.gpus)
    assert cards.count or cards.reason


def test_a_machine_holds_the_cards_and_survives_json() -> None:
    import json

    from engines.machine import Machine

    machine = read_machine(look_for_gpus=True, environment={}, nvml=Nvml(FakeNvml([Card()])))
    assert (machine.nvidia_gpus, machine.gpus, machine.driver_cuda) == (1, (FOUND,), (12, 8))
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": [{"index": 0, "uuid": "x", "name": "y", "colour": 1}]}, "colour"),
        ({"gpus": [{"index": "0", "uuid": "x", "name": "y"}]}, "index"),
        ({"gpus": [{"index": 0, "uuid": "x", "name": "y", "total_bytes": -1}]}, "total_bytes"),
        ({"gpus": [{"index": 0, "uuid": "x", "name": "y", "compute_capability": [8]}]}, "compute_capability"),
        ({"gpus": 3}, "machine.gpus"),
        ({"driver_cuda": "12.8"}, "driver_cuda"),
    ],
)
def test_a_bad_snapshot_of_a_card_names_its_key(change: dict[str, object], said: str) -> None:
    from engines.machine import Machine

    with pytest.raises(ValueError, match=said):
        Machine.from_json({**Machine("Linux", "x86_64", 1, 1).to_json(), **change})
