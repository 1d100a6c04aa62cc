"""Ports, environment, parent death: small tables."""

from __future__ import annotations

import socket
import ssl
import sys
from typing import Any

import pytest

from engines.child.environment import fill, planned_environment
from engines.child.parent_death.linux import DeathSignal
from engines.child.parent_death.posix import LifelineOnly
from engines.child.parent_death.windows import KillOnJobClose
from engines.child.ports import NoFreePort, free_port
from engines.child.probe import control_client
from engines.plan import PER_SPAWN


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            free = other.getsockname()[1]
        assert free_port([port, free]) == free
        assert free_port([free, port], start=1) == free
        with pytest.raises(NoFreePort, match="no free port"):
            free_port([port])


def test_a_port_on_which_a_former_childs_connections_linger_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # who closes first keeps the connection in TIME_WAIT
            assert client.recv(1) == b""
    assert free_port([port]) == port


def test_a_child_inherits_the_allow_list_and_an_empty_config_folder() -> None:
    planned = planned_environment({"PATH": "/bin"}, "/empty")
    assert planned["PATH"] == "/bin"
    assert planned["XDG_CONFIG_HOME"] == planned["APPDATA"] == "/empty"
    assert planned["LLAMA_API_KEY"] == PER_SPAWN
    filled = fill(planned, key="k", port=27200, marker="m")
    assert PER_SPAWN not in filled.values()
    assert filled["LLAMA_API_KEY"] == "k"
    assert filled["LLAMA_ARG_PORT"] == filled["LLAMA_SERVER_ROUTER_PORT"] == "27200"
    assert filled["PLIMSOLL_CHILD"] == "m"


def test_macos_relies_on_the_lifeline() -> None:
    assert LifelineOnly().popen_options() == {"start_new_session": True}
    LifelineOnly().adopt(1)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
def test_linux_sets_the_death_signal_between_fork_and_exec() -> None:
    calls: list[tuple[int, int]] = []

    def prctl(option: int, value: int) -> int:
        calls.append((option, value))
        return 0

    options = DeathSignal(prctl).popen_options()
    assert options["start_new_session"] is True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getppid", __import__("os").getpid)
        options["preexec_fn"]()
    assert calls == [(1, 9)]


class FakeJobs:
    """win32job and win32api at the call."""

    JobObjectExtendedLimitInformation = 9
    JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE = 0x2000

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def CreateJobObject(self, security: None, name: str) -> str:
        return "job"

    def QueryInformationJobObject(self, job: str, kind: int) -> dict[str, dict[str, int]]:
        return {"BasicLimitInformation": {"LimitFlags": 0x8}}

    def SetInformationJobObject(self, job: str, kind: int, limits: dict[str, dict[str, int]]) -> None:
        self.calls.append(("set", job, kind, limits["BasicLimitInformation"]["LimitFlags"]))

    def OpenProcess(self, rights: int, inherit: bool, pid: int) -> str:
        self.calls.append(("open", rights, pid))
        return "handle"

    def AssignProcessToJobObject(self, job: str, handle: str) -> None:
        self.calls.append(("assign", job, handle))

    def CloseHandle(self, handle: str) -> None:
        self.calls.append(("close", handle))


def test_windows_puts_children_into_a_job_that_dies_with_us_and_shows_no_console() -> None:
    api = FakeJobs()
    job = KillOnJobClose(api, api)
    job.adopt(42)
    assert api.calls == [
        ("set", "job", 9, 0x2008),
        ("open", 0x0101, 42),
        ("assign", "job", "handle"),
        ("close", "handle"),
    ]
    assert job.popen_options() == {"creationflags": 0x08000200}


async def test_a_client_for_a_child_reads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("40 ms of the loop for a connection that is never TLS")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", read)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", read)
    await control_client(1).aclose()
