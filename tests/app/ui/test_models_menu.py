"""The submenu of models, as tables."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from app.host.status import ChildState
from app.ui.entries import Action, Label, LoadModel, OpenFolder, PinModel, Rescan, Separator, Submenu, Unload, shape
from app.ui.models_menu import LISTED, models_menu, size
from app.ui.view import NAME_CHARACTERS, ModelView, TrayView
from tests.app.ui.examples import BROKEN, CHILD, GEMMA, LOADING, QWEN, actions, choice, many, request, view

LOOKING = (Action("Look for models again", Rescan()), Action("Open models folder", OpenFolder()))
GEMMA_ALONE = ("gemma-3-270m",)


def line(shown: TrayView, model: str = "gemma-3-270m") -> Action:
    """The entry of a model, wherever it stands."""
    found = [a for a in actions(models_menu(shown).entries).values() if a.intent == LoadModel(model)]
    assert len(found) == 1
    return found[0]


def texts(shown: TrayView) -> list[str]:
    return [entry.text for entry in models_menu(shown).entries if not isinstance(entry, Separator)]


def test_the_whole_submenu_of_a_loaded_model():
    shown = view(CHILD, models=(QWEN, GEMMA, BROKEN))
    assert models_menu(shown) == Submenu(
        "Models",
        (
            Action("Gemma-3-270M · 253 MB · 32,768 tokens", LoadModel("gemma-3-270m"), checked=False, radio=True),
            Action("Qwen3-4B · 4.2 GB · 32,768 tokens", LoadModel("qwen3-4b"), checked=True, radio=True),
            Label("✕ broken.gguf is damaged: no sense. Download it again."),
            Separator(),
            Action("Unload Qwen3-4B", Unload("qwen3-4b")),
            Action("Keep Qwen3-4B loaded", PinModel("qwen3-4b", True), checked=False),
            Separator(),
            *LOOKING,
        ),
    )


def test_without_models_it_says_so_and_how_to_get_some():
    assert models_menu(view(models=())).entries == (Label("No models here yet"), Separator(), *LOOKING)


@pytest.mark.parametrize(
    ("shown", "text", "checked"),
    [
        (view(), "Gemma-3-270M · 253 MB · 32,768 tokens", False),
        (view(models=(replace(GEMMA, window=None),)), "Gemma-3-270M · 253 MB", False),
        (view(models=(replace(GEMMA, pinned=True),)), "Gemma-3-270M · 253 MB · 32,768 tokens · pinned", False),
        (view(LOADING), "Gemma-3-270M · 253 MB · loading…", False),
        (view(replace(LOADING, progress=0.429)), "Gemma-3-270M · 253 MB · loading… 42 %", False),
        (
            view(replace(LOADING, progress=0.429), waiting=(choice(reason="loading"),)),
            "Gemma-3-270M · 253 MB · loading… 42 %",
            False,
        ),
        (view(replace(LOADING, state=ChildState.READY)), "Gemma-3-270M · 253 MB · 8,192 tokens", True),
        (view(replace(LOADING, state=ChildState.STOPPING)), "Gemma-3-270M · 253 MB · unloading…", False),
        (
            view(replace(LOADING, state=ChildState.STOPPING), LOADING),
            "Gemma-3-270M · 253 MB · loading…",
            False,
        ),
        (view(replace(CHILD, busy=1), waiting=(choice(),)), "Gemma-3-270M · 253 MB · after this answer", False),
        (view(CHILD, waiting=(choice(),)), "Gemma-3-270M · 253 MB · next", False),
        (
            view(replace(CHILD, state=ChildState.STOPPING), waiting=(choice(reason="switching"),)),
            "Gemma-3-270M · 253 MB · next",
            False,
        ),
        (
            view(replace(CHILD, busy=1), waiting=(request("gemma-3-270m"),)),
            "Gemma-3-270M · 253 MB · 32,768 tokens",
            False,
        ),
        (view(given_up=GEMMA_ALONE), "Gemma-3-270M · 253 MB · keeps crashing, try again", False),
        (view(LOADING, given_up=GEMMA_ALONE), "Gemma-3-270M · 253 MB · loading…", False),
        (view(waiting=(choice(),), given_up=GEMMA_ALONE), "Gemma-3-270M · 253 MB · next", False),
        (view(given_up=("qwen3-4b",)), "Gemma-3-270M · 253 MB · 32,768 tokens", False),
    ],
)
def test_each_state_of_a_model_has_its_line(shown: TrayView, text: str, checked: bool):
    assert line(shown) == Action(text, LoadModel("gemma-3-270m"), checked=checked, radio=True)


def test_a_click_means_the_same_whatever_becomes_of_the_model():
    states = [view(LOADING), view(replace(LOADING, progress=0.5)), view(replace(LOADING, state=ChildState.READY))]
    first, *others = [shape(models_menu(shown).entries) for shown in states]
    assert others == [first, first]


@pytest.mark.parametrize(
    ("shown", "entry"),
    [
        (view(CHILD), Action("Unload Qwen3-4B", Unload("qwen3-4b"))),
        (
            view(replace(CHILD, state=ChildState.STOPPING)),
            Action("Unload Qwen3-4B", Unload("qwen3-4b"), enabled=False),
        ),
        (view(LOADING), Action("Stop loading Gemma-3-270M", Unload("gemma-3-270m"))),
        (view(CHILD, waiting=(choice(),)), Action("Do not load Gemma-3-270M", Unload("gemma-3-270m"))),
    ],
)
def test_what_loads_serves_or_waits_can_be_given_up(shown: TrayView, entry: Action):
    assert entry in models_menu(shown).entries


def test_each_of_several_models_can_be_unloaded():
    entries = actions(models_menu(view(CHILD, replace(LOADING, state=ChildState.READY))).entries)
    assert {"Unload Qwen3-4B", "Unload Gemma-3-270M"} <= set(entries)


@pytest.mark.parametrize(
    ("shown", "entry"),
    [
        (view(CHILD), Action("Keep Qwen3-4B loaded", PinModel("qwen3-4b", True), checked=False)),
        (view(LOADING), Action("Keep Gemma-3-270M loaded", PinModel("gemma-3-270m", True), checked=False)),
        (
            view(models=(replace(GEMMA, pinned=True),)),
            Action("Keep Gemma-3-270M loaded", PinModel("gemma-3-270m", False), checked=True),
        ),
    ],
)
def test_what_is_loaded_or_pinned_can_be_kept_or_let_go(shown: TrayView, entry: Action):
    assert entry in models_menu(shown).entries


@pytest.mark.parametrize("shown", [view(), view(replace(CHILD, state=ChildState.STOPPING))])
def test_nothing_else_is_offered_to_be_kept(shown: TrayView):
    assert not [text for text in actions(models_menu(shown).entries) if text.startswith("Keep")]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (BROKEN, "✕ broken.gguf is damaged: no sense. Download it again."),
        (replace(BROKEN, problem="The disk is gone."), "✕ broken: The disk is gone."),
        (
            ModelView("x", "x" * 60, 1, None, problem="x" * 60 + ".gguf is damaged."),
            "✕ " + "x" * 20 + "…" + "x" * 19 + ".gguf is damaged.",
        ),
    ],
)
def test_a_broken_model_is_listed_with_its_reason_and_cannot_be_chosen(model: ModelView, text: str):
    shown = view(models=(model,))
    assert models_menu(shown).entries[0] == Label(text)
    assert not [a for a in actions(models_menu(shown).entries).values() if isinstance(a.intent, LoadModel)]


def test_many_broken_models_stand_in_a_submenu():
    broken = tuple(replace(BROKEN, id=f"b{n}") for n in range(4))
    entries = models_menu(view(models=(QWEN, *broken))).entries
    folded = entries[1]
    assert isinstance(folded, Submenu)
    assert folded.text == "✕ 4 cannot be used"
    assert len(folded.entries) == 4


def test_a_long_list_shows_what_is_in_play_and_the_rest_in_parts():
    models = (*many(50), replace(GEMMA, pinned=True), QWEN)
    shown = view(CHILD, models=models, waiting=(choice("m007"),), given_up=("m030",))
    assert texts(shown) == [
        "Gemma-3-270M · 253 MB · 32,768 tokens · pinned",
        "m007 · 1.0 GB · next",
        "m030 · 1.0 GB · keeps crashing, try again",
        "Qwen3-4B · 4.2 GB · 32,768 tokens",
        "m000 – m016",
        "m017 – m033",
        "m034 – m049",
        "Do not load m007",
        "Unload Qwen3-4B",
        "Keep Gemma-3-270M loaded",
        "Keep Qwen3-4B loaded",
        "Look for models again",
        "Open models folder",
    ]


@pytest.mark.parametrize("count", [0, 1, LISTED, LISTED + 1, 50, 300, 1000])
def test_every_model_is_offered_once_and_no_menu_is_endless(count: int):
    entries = models_menu(view(models=many(count))).entries
    offered = [a.intent for a in actions(entries).values() if isinstance(a.intent, LoadModel)]
    assert offered == [LoadModel(model.id) for model in many(count)]
    parts = [entry.entries for entry in entries if isinstance(entry, Submenu)]
    longest = max(LISTED, math.isqrt(count) + 2)
    assert all(len(part) <= longest for part in parts)
    assert len(entries) <= longest + len((Separator(), *LOOKING))


def test_families_of_a_long_list_stay_together():
    counts = {"DeepSeek-R1": 6, "Granite-3.3": 7, "Llama-3.1": 8, "Qwen3": 9, "SmolLM3": 6}
    names = [f"{family}-{n}" for family, count in counts.items() for n in range(count)]
    models = tuple(ModelView(name, name, 10**9, None) for name in names)
    assert texts(view(models=models))[:-2] == [
        "DeepSeek-R1-0 – Granite-3.3-6",
        "Llama-3.1-0 – Llama-3.1-7",
        "Qwen3-0 – SmolLM3-5",
    ]


def test_long_names_lose_their_middle():
    shown = view(models=(replace(GEMMA, id="long"),), names={"long": "Meta-" + "x" * 100 + "-Q4_K_M"})
    name = line(shown, "long").text.split(" · ")[0]
    assert len(name) == NAME_CHARACTERS
    assert name.startswith("Meta-x")
    assert name.endswith("x-Q4_K_M")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 kB"),
        (254_123, "254 kB"),
        (1_000_000, "1 MB"),
        (253_113_024, "253 MB"),
        (1_000_000_000, "1.0 GB"),
        (42_520_395_584, "42.5 GB"),
        (1_340_000_000_000, "1,340.0 GB"),
    ],
)
def test_sizes_are_as_file_managers_show_them(size_bytes: int, text: str):
    assert size(size_bytes) == text
