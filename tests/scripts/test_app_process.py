from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from app_process import AppProcess, Ready, app_command, curl_line, has_display, parse_ready
from layout import MODELS, ROOT
from steps import SetupError

READY = '{"event": "ready", "base_url": "http://127.0.0.1:27182/v1", "port": 27182, "pid": 12}'
APP = f"""
import signal, sys, threading
stop = threading.Event()
def end(number, frame):
    print("got", signal.Signals(number).name)
    stop.set()
for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), end)
print("starting")
print('{READY}')
while not stop.wait(0.05):
    pass
sys.exit(int(sys.argv[1]))
"""
"""Stands in for the app: says it is ready, ends on a signal with the status given."""

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.mark.parametrize(
    ("line", "ready"),
    [
        (READY, Ready("http://127.0.0.1:27182/v1", 27182, 12)),
        (READY + "\n", Ready("http://127.0.0.1:27182/v1", 27182, 12)),
        ('{"event": "ready", "port": 1}', None),
        ('{"event": "ready", "base_url": "x", "port": "y", "pid": 1}', None),
        ('{"event": "other", "base_url": "x", "port": 1, "pid": 1}', None),
        ("[1]", None),
        ("ready", None),
        ("", None),
    ],
)
def test_only_a_whole_ready_line_counts(line, ready):
    assert parse_ready(line) == ready


@pytest.mark.parametrize(
    ("system", "environment", "display"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ""}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("win32", {}, True),
        ("darwin", {}, True),
    ],
)
def test_a_tray_needs_a_display(system, environment, display):
    assert has_display(system, environment) is display


def test_the_app_gets_our_models_and_the_users_options_last():
    command = app_command(Path("python"), "serve", ["--home", "/h"])
    assert command == ["python", "-m", "app", "serve", "--models", str(MODELS), "--home", "/h"]


def test_the_curl_line_is_one_that_a_shell_takes():
    words = shlex.split(curl_line("http://127.0.0.1:1/v1", "m", "linux"))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:1/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert (body["model"], body["stream"], body["max_tokens"]) == ("m", True, 64)


def test_the_curl_line_for_windows_quotes_for_cmd():
    line = curl_line("http://127.0.0.1:1/v1", "m", "win32")
    assert "'" not in line
    assert json.loads(line.partition(" -d ")[2][1:-1].replace('\\"', '"'))["model"] == "m"


@posix
def test_the_app_is_ready_serves_and_stops(capfd):
    app = AppProcess([sys.executable, "-c", APP, "0"])
    assert app.wait_ready(20).port == 27182
    assert app.stop() == 0
    assert app.join_output(20)
    assert capfd.readouterr().out.splitlines() == ["starting", READY, "got SIGTERM"]


def test_an_app_that_ends_before_it_is_ready_says_its_status():
    app = AppProcess([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(SetupError, match="ended with status 3 before it was ready"):
        app.wait_ready(20)


@posix
def test_an_app_that_is_never_ready_is_stopped():
    app = AppProcess([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(SetupError, match="no ready line"):
        app.wait_ready(0.2)
    assert app.wait() == 128 + signal.SIGTERM


@posix
@pytest.mark.parametrize(
    ("sent", "received"),
    [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGTERM")],
)
def test_the_foreground_passes_signals_on_and_returns_the_apps_status(sent, received):
    runner = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
        "from app_process import run_in_foreground\n"
        f"sys.exit(run_in_foreground([sys.executable, '-c', {APP!r}, '7'], 'the-model'))"
    )
    with subprocess.Popen([sys.executable, "-c", runner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(5)]
        assert lines[:2] == ["starting", READY]
        assert lines[3].startswith("Plimsoll serves at http://127.0.0.1:27182/v1")
        assert lines[4].startswith("curl ")
        assert "the-model" in lines[4]
        process.send_signal(sent)
        assert f"got {received}" in process.stdout.read()
        assert process.wait(20) == 7
