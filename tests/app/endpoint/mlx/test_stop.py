"""Stop sequences: the answer is cut where a server that looks at every token would cut it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.endpoint.mlx.stop import StopCutter

TEXT = st.text("ab\nä", max_size=24)
STOPS = st.lists(st.text("ab\nä", min_size=1, max_size=4), max_size=3).map(tuple)


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The law, letter by letter: as soon as what stands there ends with a stop sequence, the text before the longest
    of those is the answer."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def fed(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, bool]:
    """The same by the cutter."""
    cutter, said = StopCutter(stops), ""
    for piece in pieces:
        text, met = cutter.feed(piece)
        said += text
        if met:
            return said, True
    return said + cutter.rest(), False


@pytest.mark.parametrize(
    ("pieces", "stops", "said"),
    [
        (["Hello"], (), ("Hello", False)),
        (["Hel", "lo"], ("xyz",), ("Hello", False)),
        (["one STOP two"], ("STOP",), ("one ", True)),
        (["one ST", "OP two"], ("STOP",), ("one ", True)),
        (["one S", "T", "O", "P"], ("STOP",), ("one ", True)),
        (["one S", "TAR"], ("STOP",), ("one STAR", False)),
        (["SSTOP"], ("STOP",), ("S", True)),
        (["S", "S", "TOP"], ("STOP",), ("S", True)),
        (["STOP"], ("STOP",), ("", True)),
        (["one ST"], ("STOP",), ("one ST", False)),
        (["abcX"], ("abcX", "bc"), ("a", True)),
        (["ab", "c"], ("bc", "abc"), ("", True)),
        (["a", "\n", "\n", "b"], ("\n\n",), ("a", True)),
    ],
)
def test_the_text_before_the_stop_is_said(pieces: list[str], stops: tuple[str, ...], said: tuple[str, bool]) -> None:
    assert fed(pieces, stops) == said


@settings(deadline=None)
@given(st.lists(TEXT, max_size=12), STOPS)
def test_pieces_give_what_the_whole_text_gives(pieces: list[str], stops: tuple[str, ...]) -> None:
    assert fed(pieces, stops) == cut("".join(pieces), stops)


@settings(deadline=None)
@given(st.lists(TEXT, max_size=12), STOPS)
def test_no_more_is_held_back_than_a_stop_sequence_may_need(pieces: list[str], stops: tuple[str, ...]) -> None:
    cutter, said, heard = StopCutter(stops), "", ""
    for piece in pieces:
        text, met = cutter.feed(piece)
        said, heard = said + text, heard + piece
        if met:
            return
        held = heard[len(said) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
