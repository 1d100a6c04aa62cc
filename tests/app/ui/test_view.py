"""The view's own questions, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.host.status import ChildState, Status, WaitingStatus
from app.ui.view import distinct_names, given_up
from tests.app.ui.examples import CHILD, LOADING, choice, request, view


@pytest.mark.parametrize(
    ("names", "distinct"),
    [
        ({"a": "A", "b": "B"}, {"a": "A", "b": "B"}),
        ({"a-q4": "A", "a-q8": "A", "b": "B"}, {"a-q4": "a-q4", "a-q8": "a-q8", "b": "B"}),
        ({"a-q4": "A", "a-q8": "a"}, {"a-q4": "a-q4", "a-q8": "a-q8"}),
        ({}, {}),
    ],
)
def test_names_that_several_models_share_give_way_to_ids(names: dict[str, str], distinct: dict[str, str]):
    assert distinct_names(names) == distinct


def status(*waiting: WaitingStatus) -> Status:
    return view(CHILD, waiting=waiting).status


@pytest.mark.parametrize(
    ("shown", "models"),
    [
        (status(), ()),
        (status(choice("b")), ("b",)),
        (status(choice("a")), ()),
        (status(choice("b"), choice("b"), choice("c")), ("b", "c")),
        (status(choice("b"), request("b")), ()),
        (status(request("b")), ()),
    ],
    ids=["nothing", "another", "the same", "several", "a client waits too", "a client alone"],
)
def test_choosing_a_model_takes_back_what_the_user_chose_before(shown: Status, models: tuple[str, ...]):
    assert given_up(shown, "a") == models


def test_the_child_of_a_model_is_the_one_that_stays():
    going = replace(LOADING, state=ChildState.STOPPING, pid=1)
    assert view(going, LOADING).child(LOADING.model) is LOADING
    assert view(going).child(LOADING.model) is going
    assert view().child(LOADING.model) is None
