"""The tray's words, as tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone
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
    Status,
    WaitingStatus,
    WindowStatus,
)
from app.ui.entries import (
    Action,
    CopyAddress,
    Entry,
    Intent,
    Label,
    LoadModel,
    OpenLog,
    Quit,
    Separator,
    StartWithSystem,
    Submenu,
    Tone,
    UseCpu,
    shortened,
    shortened_inside,
)
from app.ui.menu import RECENT_NOTICES, TOOLTIP_CHARACTERS, IconState, icon_state, menu, tooltip
from app.ui.models_menu import models_menu
from app.ui.view import ModelView, TrayView
from tests.app.ui.examples import CHILD, LOADING, SMALL, URL, actions, choice, notice, request, view


def bound(by: str, held: int | None, trained: int | None = 131_072) -> ChildStatus:
    return replace(CHILD, window=WindowStatus(trained, held, held, held, by, ""))


def state_lines(shown: TrayView) -> list[str]:
    """The labels above the first separator."""
    entries = menu(shown)
    top = entries[: next(i for i, entry in enumerate(entries) if isinstance(entry, Separator))]
    return [entry.text for entry in top if isinstance(entry, Label)]


def test_the_whole_menu_of_a_model_that_is_bound_by_memory():
    shown = view(bound("memory", 32_768), notices=(notice(1), notice(2)), autostart=True)
    assert menu(shown) == (
        Label("Qwen3-4B · 32,768 tokens"),
        Label("Memory holds 32,768 of 131,072", Tone.AMBER),
        models_menu(shown),
        Separator(),
        Label(URL),
        Action("Copy address", CopyAddress(URL)),
        Separator(),
        Label("Engine: CPU — no NVIDIA GPU found"),
        Submenu("Recent", (Label("00:02 notice 2"), Label("00:01 notice 1"))),
        Action("Open log", OpenLog()),
        Action("Start with the system", StartWithSystem(False), checked=True),
        Separator(),
        Action("Quit", Quit()),
    )


def test_the_whole_menu_before_the_first_model():
    assert menu(view(base_url=None)) == (
        Label("No model loaded"),
        models_menu(view()),
        Separator(),
        Label("The endpoint is not open"),
        Separator(),
        Label("Engine: CPU — no NVIDIA GPU found"),
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
        (view(CHILD, waiting=(request(),)), ["Qwen3-4B · 32,768 tokens", "1 request waits"]),
        (view(CHILD, waiting=(request(),) * 3), ["Qwen3-4B · 32,768 tokens", "3 requests wait"]),
        (view(CHILD, waiting=(choice(),)), ["Qwen3-4B · 32,768 tokens", "Next: Gemma-3-270M"]),
        (
            view(replace(CHILD, busy=1), waiting=(choice(), request())),
            [
                "Qwen3-4B · 32,768 tokens · answering",
                "Next: Gemma-3-270M, after this answer",
                "1 request waits",
            ],
        ),
        (view(LOADING, waiting=(choice(reason="loading"),)), ["Loading Gemma-3-270M…"]),
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


def test_nothing_can_be_chosen_while_the_program_quits():
    shown = view(CHILD, waiting=(choice(),), closing=True, autostart=False)
    assert not any(action.enabled for action in actions(menu(shown)).values())


@pytest.mark.parametrize(
    ("on", "entry"),
    [
        (True, Action("Start with the system", StartWithSystem(False), checked=True)),
        (False, Action("Start with the system", StartWithSystem(True), checked=False)),
        (None, None),
    ],
)
def test_starting_with_the_system_is_offered_where_it_can_be_set(on: bool | None, entry: Action | None):
    assert actions(menu(view(autostart=on))).get("Start with the system") == entry


def test_recent_notices_are_the_newest_in_the_time_of_the_place():
    shown = view(notices=tuple(notice(n) for n in range(30)), zone=timezone(timedelta(hours=2)))
    recent = next(entry for entry in menu(shown) if isinstance(entry, Submenu) and entry.text == "Recent")
    assert len(recent.entries) == RECENT_NOTICES
    assert recent.entries[0] == Label("02:29 notice 29")
    assert recent.entries[-1] == Label("02:20 notice 20")


@pytest.mark.parametrize("closing", [False, True])
def test_a_doubted_engine_is_red_and_one_click_from_the_cpu(closing):
    engine = EngineStatus("cuda", "1 NVIDIA GPU found", "cpu")
    entries = menu(replace(view(status=Status(engine, (), (), ())), closing=closing))
    at = entries.index(Label("Engine: CUDA — 1 NVIDIA GPU found", Tone.RED))
    assert entries[at + 1] == Action("Use the CPU engine instead", UseCpu(), not closing)
    assert not [e for e in menu(view()) if isinstance(e, Action) and e.intent == UseCpu()]


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


@pytest.mark.parametrize(
    ("text", "characters", "short"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "a…d"),
        ("abcdef", 4, "ab…f"),
        ("a  bcd", 4, "a…d"),
        ("ab", 2, "ab"),
        ("ab", 1, "…"),
    ],
)
def test_long_names_keep_both_ends(text: str, characters: int, short: str):
    assert shortened_inside(text, characters) == short


ids = st.integers(0, 99).map(lambda n: f"m{n}") | st.text(max_size=200)
sizes = st.integers(0, 2**50)
kinds = st.sampled_from(["acted", "model_keeps_crashing"])
children = st.builds(
    ChildStatus,
    model=ids,
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
        st.lists(st.builds(WaitingStatus, st.integers(), ids, st.floats(0), st.text(), st.booleans())).map(tuple),
        st.lists(st.builds(notice, st.integers(0, 10**6), kinds, st.none() | ids), max_size=20).map(tuple),
    ),
    models=st.lists(
        st.builds(
            ModelView, ids, st.text(max_size=200), sizes, st.none() | sizes, st.booleans(), st.none() | st.text()
        ),
        max_size=60,
        unique_by=lambda model: model.id,
    ).map(tuple),
    autostart=st.none() | st.booleans(),
    base_url=st.none() | st.just(URL),
    closing=st.booleans(),
    problem=st.none() | st.text(),
)


def check(entries: tuple[Entry, ...]) -> None:
    """No separator without something on both sides, at any depth."""
    separators = [isinstance(entry, Separator) for entry in entries]
    assert not separators[0]
    assert not separators[-1]
    assert not any(a and b for a, b in pairwise(separators))
    for entry in entries:
        if isinstance(entry, Submenu):
            check(entry.entries)


def intents(entries: tuple[Entry, ...]) -> list[Intent]:
    found: list[Intent] = []
    for entry in entries:
        if isinstance(entry, Action):
            found.append(entry.intent)
        elif isinstance(entry, Submenu):
            found += intents(entry.entries)
    return found


@given(views)
def test_every_view_has_a_menu_that_can_be_shown(shown: TrayView):
    check(menu(shown))
    assert intents(menu(shown))[-1] == Quit()
    offered = [intent.model for intent in intents(menu(shown)) if isinstance(intent, LoadModel)]
    assert sorted(offered) == sorted(model.id for model in shown.models if model.problem is None)
    assert len(tooltip(shown)) <= TOOLTIP_CHARACTERS
    assert icon_state(shown) in IconState
