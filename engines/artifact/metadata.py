"""Typed access to the keys of one header: a value of the wrong type is a MalformedModel that names the key."""

from __future__ import annotations

from engines.artifact.errors import MalformedModel
from engines.artifact.gguf_header import ArrayStub, Header, Value


class Metadata:
    """The keys of ``header``. Where a key is absent, every method returns None.

    A key that begins with a dot belongs to the architecture: ``.block_count`` of a llama is ``llama.block_count``.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self.architecture = self.text("general.architecture") or ""

    def error(self, key: str, detail: str) -> MalformedModel:
        """An error about a key."""
        return MalformedModel(self._header.path, f"its key {self._full(key)} {detail}")

    def text(self, key: str) -> str | None:
        """A string; one that was too long to keep counts as absent."""
        value = self._get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int | float | tuple | ArrayStub):
            raise self.error(key, "is no text")
        return None

    def whole(self, key: str) -> int | None:
        """A number, not negative."""
        value = self._get(key)
        if value is None:
            return None
        return self._whole(key, value)

    def number(self, key: str) -> float | None:
        """Any number."""
        value = self._get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "is no number")
        return float(value)

    def flag(self, key: str) -> bool | None:
        """A truth value."""
        value = self._get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.error(key, "is neither true nor false")

    def per_layer(self, key: str, layers: int) -> tuple[int, ...] | None:
        """One number for each of ``layers`` layers: a list as it is, a single number for all."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, tuple | ArrayStub):
            return (self._whole(key, value),) * layers
        count = value.count if isinstance(value, ArrayStub) else len(value)
        if isinstance(value, ArrayStub) or count != layers:
            raise self.error(key, f"has {count:,} numbers for {layers:,} layers")
        return tuple(self._whole(key, one) for one in value)

    def largest(self, key: str) -> int | None:
        """A number, or the largest of a list."""
        value = self._get(key)
        if not isinstance(value, tuple):
            return self.whole(key)
        return max((self._whole(key, one) for one in value), default=None)

    def pattern(self, key: str) -> tuple[bool | int | float, ...] | int | None:
        """A list of numbers or truth values, or one number."""
        value = self._get(key)
        return value if isinstance(value, tuple) else self.whole(key)

    def count(self, key: str) -> int | None:
        """How many elements an array has."""
        value = self._get(key)
        if value is None:
            return None
        if isinstance(value, ArrayStub):
            return value.count
        if isinstance(value, tuple):
            return len(value)
        raise self.error(key, "is no list")

    def _full(self, key: str) -> str:
        return f"{self.architecture}{key}" if key.startswith(".") else key

    def _get(self, key: str) -> Value | None:
        return self._header.metadata.get(self._full(key))

    def _whole(self, key: str, value: Value) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, "is no whole number")
        if value < 0:
            raise self.error(key, "is negative")
        return value
