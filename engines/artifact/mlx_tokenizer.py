"""What the files of a tokenizer say: that there is one, its limit, the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.artifact.errors import IncompleteModel, MalformedModel
from engines.artifact.mlx_config import MAX_WHOLE
from engines.artifact.mlx_files import read_object, read_text

TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE_TEXT = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"
TOKENIZERS = frozenset(
    {
        "tokenizer.json",
        "tokenizer.model",
        "tekken.json",
        "spiece.model",
        "sentencepiece.bpe.model",
        "vocab.json",
        "vocab.txt",
    }
)
"""Any of them is a tokenizer; some families have their own names, which end in TOKENIZER_SUFFIXES."""
TOKENIZER_SUFFIXES = (".tiktoken", ".jsonl")
VOCABULARY_MARK = "vocab"


def has_tokenizer(names: Sequence[str]) -> bool:
    """Whether one of the files is a tokenizer."""
    return any(
        name in TOKENIZERS
        or name.endswith(TOKENIZER_SUFFIXES)
        or (VOCABULARY_MARK in name and name.endswith((".txt", ".model")))
        for name in names
    )


def check_tokenizer(folder: Path, names: Sequence[str]) -> None:
    """Raises IncompleteModel where no file is a tokenizer."""
    if not has_tokenizer(names):
        raise IncompleteModel(folder, "its tokenizer (tokenizer.json) is missing")


def read_tokenizer_config(folder: Path) -> Mapping[str, Any]:
    """The tokenizer's configuration, empty where there is none."""
    return read_object(folder, TOKENIZER_CONFIG) or {}


def read_template(folder: Path, tokenizer: Mapping[str, Any]) -> str | None:
    """The chat template, in the order in which the engine looks: its own file, a processor's, the tokenizer's."""
    text = read_text(folder, TEMPLATE_TEXT)
    if text is not None:
        return text
    inside = read_object(folder, TEMPLATE_JSON)
    found = template_in(folder, TEMPLATE_JSON, inside or {})
    return template_in(folder, TOKENIZER_CONFIG, tokenizer) if found is None else found


def template_in(folder: Path, name: str, document: Mapping[str, Any]) -> str | None:
    """The ``chat_template`` of a document: a text, or of a list of named ones the one called ``default``."""
    value = document.get("chat_template")
    if isinstance(value, list):
        named = {
            one["name"]: one["template"]
            for one in value
            if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)
        }
        value = named.get("default", next(iter(named.values()), None))
    if value is not None and not isinstance(value, str):
        raise MalformedModel(folder, f"the chat template in its {name} is no text")
    return None if value is None else _sound(value)


def limited(window: int | None, tokenizer: Mapping[str, Any], *, enforced: bool = False) -> int | None:
    """The trained window, less where the tokenizer takes fewer tokens; its "no limit" is a number like 1e30.

    ``enforced``: the engine cuts at the tokenizer's limit, also where no window is known.
    """
    limit = tokenizer.get("model_max_length")
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 1 <= limit <= MAX_WHOLE:
        return window
    if window is None:
        return int(limit) if enforced else None
    return min(window, int(limit))


def tokenizer_name(tokenizer: Mapping[str, Any]) -> str | None:
    """The class of the tokenizer, where it is named."""
    name = tokenizer.get("tokenizer_class")
    return _sound(name) if isinstance(name, str) else None


def _sound(text: str) -> str:
    """JSON can write half a character, which no other encoding can."""
    return text.encode("utf-8", "replace").decode("utf-8")
