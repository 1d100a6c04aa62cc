"""What every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.running import Running, make_models


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What drives the whole system into memory pressure runs last: its echo lasts for seconds."""
    items.sort(key=lambda item: item.get_closest_marker("pressure") is not None)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models."""
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def start(tmp_path: Path, tiny_models: Path) -> Iterator[Any]:
    """Starts the application: ``start(home=..., models=..., settings=..., environ=...)``; all end with the test."""
    with ExitStack() as stack:

        def begin(**options: Any) -> Running:
            options.setdefault("home", tmp_path / "home")
            options.setdefault("models", (tiny_models,))
            return stack.enter_context(Running(**options))

        yield begin


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[Running]:
    """One application for a module's tests that leave it as it was."""
    with Running(tmp_path_factory.mktemp("home"), (tiny_models,)) as app:
        yield app
