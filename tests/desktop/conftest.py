"""The desktops of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.xvfb import Desktop, desktop


@pytest.fixture
def panel() -> Iterator[Desktop]:
    """With an XEmbed tray at the right end of a panel."""
    with desktop(tray=True) as made:
        yield made


@pytest.fixture
def bare() -> Iterator[Desktop]:
    """Without any tray, until a test brings one."""
    with desktop(tray=False) as made:
        yield made
