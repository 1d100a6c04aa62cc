"""Qt and asyncio on one loop: each story in a process of its own, as an application has but one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.ui.loop import NoDisplayError, display_is_missing, run

ROOT = Path(__file__).resolve().parents[3]

PATIENCE = 60
"""Seconds for a whole story; each takes less than two."""

BEGIN = """
import asyncio, os, signal, sys
from app.ui.loop import run, wake_for_signals
"""


def story(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BEGIN + text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def ends(text: str, code: int, output: str = "") -> None:
    done = story(text)
    assert (done.returncode, done.stdout, done.stderr) == (code, output, "")


def test_the_end_of_the_coroutine_is_the_end_and_its_result_the_exit_code():
    ends(
        """
async def main(app):
    print(app.applicationName(), app.applicationDisplayName(), app.desktopFileName(), app.windowIcon().isNull())
    await asyncio.sleep(0.01)
    return 7
sys.exit(run(main))
""",
        7,
        "plimsoll Plimsoll plimsoll False\n",
    )


def test_an_error_of_the_coroutine_comes_out():
    done = story(
        """
async def main(app):
    raise LookupError("lost")
sys.exit(run(main))
"""
    )
    assert done.returncode == 1
    assert "LookupError: lost" in done.stderr


def test_tasks_that_are_left_are_cancelled_and_threads_joined():
    ends(
        """
async def forever():
    try:
        await asyncio.Event().wait()
    finally:
        print("cancelled")
async def main(app):
    task = asyncio.create_task(forever())
    print(await asyncio.to_thread(lambda: "thread"))
    return 0
sys.exit(run(main))
""",
        0,
        "thread\ncancelled\n",
    )


def test_closing_the_last_window_does_not_end_it():
    ends(
        """
from PySide6.QtWidgets import QWidget
async def main(app):
    window = QWidget()
    window.show()
    window.close()
    for _ in range(20):
        await asyncio.sleep(0.01)
    print("still here")
    return 0
sys.exit(run(main))
""",
        0,
        "still here\n",
    )


def test_a_quit_of_the_desktop_cancels_the_coroutine_once_and_lets_it_clean_up():
    ends(
        """
async def main(app):
    try:
        asyncio.get_running_loop().call_later(0.01, app.quit)
        await asyncio.Event().wait()
    finally:
        app.quit()
        await asyncio.sleep(0.02)
        print("clean")
sys.exit(run(main))
""",
        0,
        "clean\n",
    )


def test_a_coroutine_may_answer_a_quit_with_its_own_code():
    ends(
        """
async def main(app):
    try:
        asyncio.get_running_loop().call_later(0.01, app.quit)
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return 3
sys.exit(run(main))
""",
        3,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows loops have no add_signal_handler")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_loop_while_qt_rests(number: signal.Signals):
    ends(
        f"""
import threading
async def main(app):
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler({int(number)}, heard.set)
    threading.Thread(target=lambda: os.kill(os.getpid(), {int(number)})).start()
    await heard.wait()
    print("heard")
    return 0
sys.exit(run(main))
""",
        0,
        "heard\n",
    )


def test_handlers_of_the_signal_module_run_where_python_is_woken():
    """What Windows does, played on any system: nothing but the timer lets Python run."""
    ends(
        """
import threading
async def main(app):
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(heard.set))
    timer = wake_for_signals(app)
    threading.Thread(target=lambda: signal.raise_signal(signal.SIGTERM)).start()
    await heard.wait()
    print("heard")
    return 0
sys.exit(run(main))
""",
        0,
        "heard\n",
    )


def test_ten_thousand_callbacks_leave_none_alone():
    """PySide6 6.12 on Python < 3.12 drops a reference to None in every void call, until the process aborts."""
    ends(
        """
from PySide6.QtCore import QTimer
async def main(app):
    timer = QTimer(app)
    before = sys.getrefcount(None)
    for _ in range(10_000):
        timer.setInterval(1)
        await asyncio.sleep(0)
    print(abs(sys.getrefcount(None) - before) < 1_000)
    return 0
sys.exit(run(main))
""",
        0,
        "True\n",
    )


@pytest.mark.parametrize(
    ("platform", "environ", "missing"),
    [
        ("linux", {}, True),
        ("linux", {"DISPLAY": ""}, True),
        ("linux", {"DISPLAY": ":0"}, False),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, False),
        ("linux", {"QT_QPA_PLATFORM": "offscreen"}, False),
        ("darwin", {}, False),
        ("win32", {}, False),
    ],
)
def test_only_linux_can_lack_a_display(platform: str, environ: dict[str, str], missing: bool):
    assert display_is_missing(platform, environ) is missing


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can lack a display")
def test_without_a_display_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    for name in ("QT_QPA_PLATFORM", "WAYLAND_DISPLAY", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)

    async def never(app: object) -> int:
        raise AssertionError(app)

    with pytest.raises(NoDisplayError, match="plimsoll serve") as caught:
        run(never)
    assert caught.value.code == "no_display"
