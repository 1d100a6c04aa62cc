"""The tray's words, as tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.host.status import (
    BrakeStatus,
    ChildState,
    ChildStatus,
    EngineStatus,
    MemoryStatus,
    NoticeStatus,
    Status,
    WaitingStatus,
    WindowStatus,
)
from app.ui.menu import (
    RECENT_NOTICES,
    TOOLTIP_CHARACTERS,
    Action,
    CopyAddress,
    Entry,
    IconState,
    Intent,
    Label,
    OpenFolder,
    OpenLog,
    Quit,
    Separator,
    Submenu,
    Tone,
    TrayView,
    Unload,
    icon_state,
    menu,
    shortened,
    tooltip,
)

URL = "http://127.0.0.1:27182/v1"

CHILD = ChildStatus(
    model="qwen3-4b",
    pid=1,
    port=2,
    state=ChildState.READY,
    slots=2,
    busy=0,
    progress=None,
    window=WindowStatus(131_072, 32_768, 32_768, 32_768, "model", ""),
    memory=MemoryStatus(None, None),
)
SMALL = replace(CHILD, model="gemma-3-270m", window=WindowStatus(None, None, 8192, None, "model", ""))
LOADING = replace(SMALL, state=ChildState.LOADING)


def view(*children: ChildStatus, **other: object) -> TrayView:
    made = TrayView(
        Status(EngineStatus("CPU", "no NVIDIA GPU found"), children, (), ()),
        URL,
        {"qwen3-4b": "Qwen3-4B", "gemma-3-270m": "Gemma-3-270M"},
        zone=UTC,
    )
    return replace(made, **other)  # type: ignore[arg-type]


def waiting(count: int) -> Status:
    turns = tuple(WaitingStatus(turn, "qwen3-4b", 1.0, "") for turn in range(count))
    return replace(view(CHILD).status, waiting=turns)


def noticed(*notices: NoticeStatus) -> TrayView:
    return view(status=replace(view().status, notices=notices))


def notice(minute: int) -> NoticeStatus:
    return NoticeStatus("acted", 60.0 * minute, f"notice {minute}", {})


def bound(by: str, held: int | None, trained: int | None = 131_072) -> ChildStatus:
    return replace(CHILD, window=WindowStatus(trained, held, held, held, by, ""))


def actions(entries: tuple[Entry, ...]) -> dict[str, Action]:
    return {entry.text: entry for entry in entries if isinstance(entry, Action)}


def state_lines(shown: TrayView) -> list[str]:
    """The labels above the first separator."""
    entries = menu(shown)
    top = entries[: next(i for i, entry in enumerate(entries) if isinstance(entry, Separator))]
    return [entry.text for entry in top if isinstance(entry, Label)]


def test_the_whole_menu_of_a_model_that_is_bound_by_memory():
    shown = view(bound("memory", 32_768))
    shown = replace(shown, status=replace(shown.status, notices=(notice(1), notice(2))))
    assert menu(shown) == (
        Label("Qwen3-4B · 32,768 tokens"),
        Label("Memory holds 32,768 of 131,072", Tone.AMBER),
        Separator(),
        Label(URL),
        Action("Copy address", CopyAddress(URL)),
        Separator(),
        Action("Unload Qwen3-4B", Unload("qwen3-4b")),
        Separator(),
        Label("Engine: CPU — no NVIDIA GPU found"),
        Submenu("Recent", (Label("00:02 notice 2"), Label("00:01 notice 1"))),
        Action("Open models folder", OpenFolder()),
        Action("Open log", OpenLog()),
        Separator(),
        Action("Quit", Quit()),
    )


def test_the_whole_menu_before_the_first_model():
    assert menu(view(base_url=None)) == (
        Label("No model loaded"),
        Separator(),
        Label("The endpoint is not open"),
        Separator(),
        Label("Engine: CPU — no NVIDIA GPU found"),
        Action("Open models folder", OpenFolder()),
        Action("Open log", OpenLog()),
        Separator(),
        Action("Quit", Quit()),
    )


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (view(), ["No model loaded"]),
        (view(LOADING), ["Loading Gemma-3-270M…"]),
        (view(replace(LOADING, progress=0.0)), ["Loading Gemma-3-270M… 0 %"]),
        (view(replace(LOADING, progress=0.4299)), ["Loading Gemma-3-270M… 42 %"]),
        (view(replace(LOADING, progress=0.999)), ["Loading Gemma-3-270M… 99 %"]),
        (view(replace(LOADING, progress=1.2)), ["Loading Gemma-3-270M… 100 %"]),
        (view(CHILD), ["Qwen3-4B · 32,768 tokens"]),
        (view(replace(CHILD, busy=1)), ["Qwen3-4B · 32,768 tokens · answering"]),
        (view(replace(CHILD, busy=2)), ["Qwen3-4B · 32,768 tokens · answering 2"]),
        (view(replace(CHILD, state=ChildState.STOPPING, busy=1)), ["Unloading Qwen3-4B…"]),
        (view(replace(CHILD, model="unnamed")), ["unnamed · 32,768 tokens"]),
        (view(CHILD, SMALL), ["Qwen3-4B · 32,768 tokens", "Gemma-3-270M · 8,192 tokens"]),
        (view(status=waiting(1)), ["Qwen3-4B · 32,768 tokens", "1 request waits"]),
        (view(status=waiting(3)), ["Qwen3-4B · 32,768 tokens", "3 requests wait"]),
        (view(CHILD, closing=True), ["Quitting…"]),
        (view(CHILD, problem="Do this."), ["Do this.", "Qwen3-4B · 32,768 tokens"]),
    ],
)
def test_each_state_has_its_lines(shown: TrayView, lines: list[str]):
    assert state_lines(shown) == lines


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (WindowStatus(None, 1024, 2048, 512, "model", ""), "Qwen3-4B · 512 tokens"),
        (WindowStatus(None, 1024, 2048, None, "model", ""), "Qwen3-4B · 2,048 tokens"),
        (WindowStatus(None, 1024, None, None, "model", ""), "Qwen3-4B · 1,024 tokens"),
        (WindowStatus(None, None, None, None, "model", ""), "Qwen3-4B"),
        (WindowStatus(None, None, 1_048_576, None, "model", ""), "Qwen3-4B · 1,048,576 tokens"),
    ],
)
def test_the_window_is_the_one_that_holds(window: WindowStatus, text: str):
    assert state_lines(view(replace(CHILD, window=window))) == [text]


@pytest.mark.parametrize(
    ("child", "says_so"),
    [
        (bound("memory", 32_768), True),
        (bound("free memory", 32_768), True),
        (bound("brake", 32_768), True),
        (bound("model", 32_768), False),
        (bound("user", 32_768), False),
        (bound("memory", 131_072), False),
        (bound("memory", None), False),
        (bound("memory", 32_768, trained=None), False),
        (replace(bound("memory", 32_768), state=ChildState.LOADING), False),
        (replace(bound("memory", 32_768), state=ChildState.STOPPING), False),
    ],
)
def test_memory_is_blamed_only_where_it_is_to_blame(child: ChildStatus, says_so: bool):
    line = Label("Memory holds 32,768 of 131,072", Tone.AMBER)
    assert (line in menu(view(child))) is says_so


def test_a_problem_is_red_and_comes_first():
    assert menu(view(CHILD, problem="Do this."))[0] == Label("Do this.", Tone.RED)


@pytest.mark.parametrize(
    ("state", "entry"),
    [
        (ChildState.READY, Action("Unload Qwen3-4B", Unload("qwen3-4b"))),
        (ChildState.LOADING, Action("Stop loading Qwen3-4B", Unload("qwen3-4b"))),
        (ChildState.STOPPING, Action("Unload Qwen3-4B", Unload("qwen3-4b"), enabled=False)),
    ],
)
def test_unload_fits_the_state(state: ChildState, entry: Action):
    assert entry in menu(view(replace(CHILD, state=state)))


def test_each_of_several_models_can_be_unloaded():
    assert {"Unload Qwen3-4B", "Unload Gemma-3-270M"} <= set(actions(menu(view(CHILD, SMALL))))


def test_nothing_can_be_chosen_while_the_program_quits():
    assert not any(action.enabled for action in actions(menu(view(CHILD, closing=True))).values())


def test_recent_notices_are_the_newest_in_the_time_of_the_place():
    shown = replace(noticed(*(notice(n) for n in range(30))), zone=timezone(timedelta(hours=2)))
    recent = next(entry for entry in menu(shown) if isinstance(entry, Submenu))
    assert len(recent.entries) == RECENT_NOTICES
    assert recent.entries[0] == Label("02:29 notice 29")
    assert recent.entries[-1] == Label("02:20 notice 20")


def test_an_engine_without_a_reason_is_just_named():
    assert Label("Engine: MLX") in menu(view(status=Status(EngineStatus("MLX", ""), (), (), ())))


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        (view(), IconState.IDLE),
        (view(replace(CHILD, state=ChildState.STOPPING)), IconState.IDLE),
        (view(LOADING), IconState.LOADING),
        (view(CHILD, LOADING), IconState.LOADING),
        (view(CHILD), IconState.SERVING),
        (view(bound("memory", 32_768)), IconState.SERVING),
        (view(bound("free memory", 32_768)), IconState.REDUCED),
        (view(bound("brake", 32_768)), IconState.REDUCED),
        (view(replace(CHILD, brake=BrakeStatus("warning", None, 1))), IconState.SERVING),
        (view(replace(CHILD, brake=BrakeStatus("calm", 24_576, 1))), IconState.REDUCED),
        (view(replace(bound("brake", 4096), state=ChildState.STOPPING)), IconState.IDLE),
        (view(CHILD, problem="Do this."), IconState.PROBLEM),
        (view(LOADING, problem="Do this."), IconState.PROBLEM),
    ],
)
def test_the_icon_shows_what_matters_most(shown: TrayView, state: IconState):
    assert icon_state(shown) is state


@pytest.mark.parametrize(
    ("text", "characters", "short"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("a  d", 3, "a…"), ("", 1, ""), ("ab", 1, "…")],
)
def test_long_text_ends_in_an_ellipsis(text: str, characters: int, short: str):
    assert shortened(text, characters) == short


children = st.builds(
    ChildStatus,
    model=st.text(max_size=200),
    pid=st.none(),
    port=st.none(),
    state=st.sampled_from(ChildState),
    slots=st.integers(1, 8),
    busy=st.integers(0, 8),
    progress=st.none() | st.floats(0, 1),
    window=st.builds(
        WindowStatus,
        *[st.none() | st.integers(0, 2**40)] * 4,
        st.sampled_from(["model", "memory", "free memory", "brake", "user"]),
        st.text(),
    ),
    memory=st.just(MemoryStatus(None, None)),
)
views = st.builds(
    view,
    status=st.builds(
        Status,
        st.builds(EngineStatus, st.text(), st.text()),
        st.lists(children, max_size=4).map(tuple),
        st.just(()),
        st.lists(st.builds(notice, st.integers(0, 10**6)), max_size=20).map(tuple),
    ),
    base_url=st.none() | st.just(URL),
    closing=st.booleans(),
    problem=st.none() | st.text(),
)


@given(views)
def test_every_view_has_a_menu_that_can_be_shown(shown: TrayView):
    entries = menu(shown)
    separators = [isinstance(entry, Separator) for entry in entries]
    assert not separators[0]
    assert not separators[-1]
    assert not any(a and b for a, b in pairwise(separators))
    intents: list[Intent] = [entry.intent for entry in entries if isinstance(entry, Action)]
    assert intents[-1] == Quit()
    assert len(tooltip(shown)) <= TOOLTIP_CHARACTERS
    assert icon_state(shown) in IconState
