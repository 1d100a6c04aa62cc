from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import client_checks
import dev_commands
import pytest
from app_process import Ready
from checks import Check, all_checks, run_checks
from client_checks import Client, find_clients, run_client
from environment import Venv
from layout import ROOT
from steps import SetupError, run_main, run_step


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["lint", "extra"], ["setup", "extra"], ["clients", "x"]])
def test_a_wrong_command_line_shows_the_usage(arguments, capfd):
    assert dev_commands.main(arguments) == 2
    assert "usage: python3 scripts/dev.py COMMAND" in capfd.readouterr().out


def test_every_command_is_in_the_usage(capfd):
    assert dev_commands.main(["--help"]) == 0
    shown = capfd.readouterr().out
    assert all(f"\n  {name} " in shown for name in dev_commands.COMMANDS)


def test_a_missing_benchmark_is_said(monkeypatch, capfd):
    monkeypatch.setattr(dev_commands, "BENCH", ROOT / "scripts" / "no_bench.py")
    assert dev_commands.main(["bench"]) == 2
    assert "there is no " in capfd.readouterr().out


def test_dev_starts_with_the_standard_library_alone():
    command = [sys.executable, "-S", "-E", ROOT / "scripts" / "dev.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage"), done.stderr


def test_a_set_up_error_is_a_sentence_and_status_1(capfd):
    def fail():
        raise SetupError("x", "Do this.")

    assert run_main(fail) == 1
    assert capfd.readouterr().out == "error: Do this.\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [([sys.executable, "-c", "raise SystemExit(4)"], "failed with status 4"), (["no-such-program"], "does not start")],
)
def test_a_step_that_fails_carries_its_code_and_command(command, said):
    with pytest.raises(SetupError, match=said) as refused:
        run_step(command, "code", "Trying")
    assert refused.value.code == "code"


def test_every_check_runs_and_the_failed_ones_are_named(tmp_path, capfd):
    checks = [
        Check("first", (sys.executable, "-c", "print('why'); raise SystemExit(1)")),
        Check("second", (sys.executable, "-c", "print('fine')")),
    ]
    assert run_checks(checks, tmp_path) == ["first"]
    shown = capfd.readouterr().out
    assert "first: FAILED" in shown
    assert "why" in shown
    assert "second: ok" in shown
    assert "fine" not in shown


def test_types_are_checked_for_every_platform():
    names = [check.name for check in all_checks(Venv(Path("v")))]
    assert names == ["ruff check", "ruff format", "mypy linux", "mypy win32", "mypy darwin", "import rules"]


def write_client(folder: Path, code: str, lock: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "client.py").write_text(code)
    if lock:
        (folder / "requirements.lock").touch()
    return folder


def test_clients_are_found_by_name(tmp_path):
    write_client(tmp_path / "b", "")
    write_client(tmp_path / "a", "")
    (tmp_path / "__pycache__").mkdir()
    assert [client.name for client in find_clients(tmp_path)] == ["a", "b"]


def test_a_client_without_a_lock_is_named(tmp_path):
    write_client(tmp_path / "a", "", lock=False)
    with pytest.raises(SetupError, match=r"a has no requirements\.lock"):
        find_clients(tmp_path)


@pytest.mark.parametrize(
    ("code", "passed", "said"),
    [
        ("import sys; assert sys.argv[1:] == ['http://x/v1', 'm', 'cpu']", True, "a, cpu: passed"),
        ("raise SystemExit(5)", False, "a, cpu: FAILED with status 5"),
    ],
)
def test_a_client_gets_address_and_model_and_its_status_counts(tmp_path, capfd, code, passed, said):
    folder = write_client(tmp_path / "a", code)
    client = Client("a", folder / "client.py", folder / "requirements.lock")
    assert run_client(client, Path(sys.executable), Ready("http://x/v1", 1, 1), "m") is passed
    assert said in capfd.readouterr().out


def test_a_client_that_hangs_fails(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(client_checks, "CLIENT_TIMEOUT_S", 0.5)
    folder = write_client(tmp_path / "a", "import time; time.sleep(60)")
    client = Client("a", folder / "client.py", folder / "requirements.lock")
    assert run_client(client, Path(sys.executable), Ready("http://x/v1", 1, 1), "m") is False
    assert "not done after" in capfd.readouterr().out


def test_without_clients_the_count_is_still_said(capfd):
    assert client_checks.run_clients("m", []) == 0
    assert capfd.readouterr().out == "clients: 0 passed, 0 failed\n"
