"""Typed access to a ``config.json``: a value of the wrong type is a MalformedModel that names the key. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.artifact.errors import MalformedModel
from engines.artifact.mlx_tables import DEFAULTS, REMAPPED

CONTAINERS = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where a multimodal model keeps the configuration of its language model; one may hold another."""
NESTING = 3
"""How deep containers are followed: thinker_config > text_config is the deepest in use."""
MAX_WHOLE = 2**31 - 1
"""Ours: no count of layers, heads, tokens or dimensions is larger; it keeps products in 64 bits or nearly so."""

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Config:
    """The keys of ``document``. A key is looked for at the top level first and then in the containers.

    Where a key is absent or null, every method goes on to the next name and ends with None. ``names`` are
    spellings of one key: the first that is anywhere decides.
    """

    def __init__(self, folder: Path, document: Mapping[str, Any]) -> None:
        self.folder = folder
        self._scopes = [document]
        for scope in self._scopes:
            if len(self._scopes) <= NESTING:
                self._scopes += [inner for name in CONTAINERS if (inner := self._table(scope, name))]
        found = [kind for scope in self._scopes if (kind := self._type_of(scope)) is not None]
        self.model_type = found[0] if found else ""
        """As the file spells it, in lower case; empty where it does not say."""
        self.types = tuple(dict.fromkeys(REMAPPED.get(kind, kind) for kind in found))
        """What the engine calls the model, and then its language model where that has a type of its own."""

    def error(self, key: str, detail: str) -> MalformedModel:
        """An error about a key."""
        return MalformedModel(self.folder, f"the key {key} of its config.json {detail}")

    def is_one_of(self, types: frozenset[str]) -> bool:
        """Whether the model or its language model is of one of these types."""
        return any(kind in types for kind in self.types)

    def mentions(self, name: str) -> bool:
        """Whether a key is anywhere, null included."""
        return any(name in scope for scope in self._scopes)

    def value(self, *names: str) -> Any:
        """The value as it is, or the default of this type of model."""
        for name in names:
            for scope in self._scopes:
                if scope.get(name) is not None:
                    return scope[name]
        for name in names:
            for kind in self.types:
                if name in DEFAULTS.get(kind, {}) and not self.mentions(name):
                    return DEFAULTS[kind][name]
        return None

    def whole(self, *names: str) -> int | None:
        """A number from 0 to MAX_WHOLE."""
        value = self.value(*names)
        return None if value is None else self._whole(names[0], value)

    def count(self, *names: str) -> int | None:
        """A number, None for 0: nothing of the kind."""
        return self.whole(*names) or None

    def largest(self, *names: str) -> int | None:
        """A number, or the largest of a list; None for 0."""
        value = self.value(*names)
        if isinstance(value, list):
            return max((self._whole(names[0], one) for one in value), default=0) or None
        return None if value is None else self._whole(names[0], value) or None

    def per_layer(self, layers: int, *names: str) -> tuple[int, ...] | None:
        """One number for each of ``layers`` layers: a list as it is, a single number for all."""
        value = self.value(*names)
        if value is None:
            return None
        if not isinstance(value, list):
            return (self._whole(names[0], value),) * layers
        if len(value) != layers:
            raise self.error(names[0], f"has {len(value):,} numbers for {layers:,} layers")
        return tuple(self._whole(names[0], one) for one in value)

    def texts(self, *names: str) -> tuple[str, ...] | None:
        """A list of texts."""
        value = self.value(*names)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.error(names[0], "is no list of texts")
        return tuple(value)

    def wholes(self, *names: str) -> tuple[int, ...] | None:
        """A list of numbers."""
        value = self.value(*names)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(names[0], "is no list of numbers")
        return tuple(self._whole(names[0], one) for one in value)

    def flag(self, *names: str) -> bool | None:
        """A truth value."""
        value = self.value(*names)
        if value is None or isinstance(value, bool):
            return value
        raise self.error(names[0], "is neither true nor false")

    def table(self, *names: str) -> Mapping[str, Any] | None:
        """An object; None for an empty one."""
        value = self.value(*names)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(names[0], "is no object")
        return value or None

    def _table(self, scope: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
        value = scope.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "is no object")
        return value

    def _type_of(self, scope: Mapping[str, Any]) -> str | None:
        value = scope.get("model_type")
        if value is None:
            return None
        if not isinstance(value, str) or _TYPE.fullmatch(value) is None:
            raise self.error("model_type", "is no name of an architecture")
        return value.lower()

    def _whole(self, key: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, "is no whole number")
        if not 0 <= value <= MAX_WHOLE:
            raise self.error(key, "is negative" if value < 0 else f"is more than {MAX_WHOLE:,}")
        return value
