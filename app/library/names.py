"""Which model a request means. Pure: names and records in, one record or one error out."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from app.library.records import ModelRecord
from engines.artifact.facts import ModelKind
from engines.artifact.picker import PREFERENCE

AUTO = "auto"
"""The name that leaves the choice to us; a request without a name means the same."""
CLOSE_NAMES = 3
"""How many similar ids an error about an unknown name gives."""
CONTAINED_CHARACTERS = 3
"""Shortest name that is looked for inside the others, in characters."""
NAME_CHARACTERS = 200
"""How much of a name is compared with others and repeated: comparing is quadratic, clients send anything."""

_NAMES: tuple[Callable[[ModelRecord, str], bool], ...] = (
    lambda record, name: record.id == name,
    lambda record, name: name.casefold() in {alias.casefold() for alias in record.aliases},
    lambda record, name: record.name == name,
    lambda record, name: record.stem == name,
    lambda record, name: record.repository == name,
)
"""What a name may be, in order: the first that any model answers to decides."""


class ModelNotFound(Exception):
    """No model has this name. ``close`` holds ids of models with a similar one."""

    code = "model_not_found"

    def __init__(self, name: str | None, sentence: str, close: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.name = name
        self.sentence = sentence
        self.close = close


class ModelBroken(Exception):
    """The model is here but its file can not be used; the sentence says why."""

    code = "model_broken"

    def __init__(self, model: str, sentence: str) -> None:
        super().__init__(sentence)
        self.model = model
        self.sentence = sentence


def resolve(
    name: str | None, records: Sequence[ModelRecord], *, loaded: Sequence[str], default: str | None
) -> ModelRecord:
    """The model that ``name`` means among the enabled ``records``; ``loaded`` are ids, the latest used first.

    Raises ModelNotFound, or ModelBroken where the name means a broken model.
    """
    enabled = [record for record in records if record.enabled]
    name = (name or "").strip() or AUTO
    found = _named(name, enabled, loaded)
    if found is not None:
        return _whole(found)
    if name.casefold() == AUTO:
        return _automatic(enabled, loaded, default)
    raise _unknown(name, enabled, "There is no model")


def _named(name: str, records: Sequence[ModelRecord], loaded: Sequence[str]) -> ModelRecord | None:
    for answers_to in _NAMES:
        matches = [record for record in records if answers_to(record, name)]
        if matches:
            return min(matches, key=lambda record: _preference(record, loaded))
    return None


def _preference(record: ModelRecord, loaded: Sequence[str]) -> tuple[bool, int, int, int, str]:
    quant = (record.facts.quantisation or "").lower() if record.facts is not None else ""
    return (
        record.broken is not None,
        loaded.index(record.id) if record.id in loaded else len(loaded),
        PREFERENCE.index(quant) if quant in PREFERENCE else len(PREFERENCE),
        record.size_bytes,
        record.id,
    )


def _automatic(records: Sequence[ModelRecord], loaded: Sequence[str], default: str | None) -> ModelRecord:
    chat = {record.id: record for record in records if _answers_chat(record)}
    for model in loaded:
        if model in chat:
            return chat[model]
    if default is not None:
        found = _named(default, records, loaded)
        if found is None:
            raise _unknown(default, records, "The default model is not here:")
        return _whole(found)
    if not chat:
        raise ModelNotFound(None, "There is no chat model here. Download one, or add a folder with one.")
    return chat[min(chat)]


def _answers_chat(record: ModelRecord) -> bool:
    return record.broken is None and record.facts is not None and record.facts.kind is ModelKind.CHAT


def _whole(record: ModelRecord) -> ModelRecord:
    if record.broken is not None:
        raise ModelBroken(record.id, f"The model {record.id} can not be used: {record.broken}")
    return record


def _unknown(name: str, records: Sequence[ModelRecord], what: str) -> ModelNotFound:
    shown = name if len(name) <= NAME_CHARACTERS else f"{name[:NAME_CHARACTERS]}…"
    close = _close(name[:NAME_CHARACTERS], records)
    hint = f"Close ones: {', '.join(close)}." if close else "GET /v1/models lists those that are here."
    return ModelNotFound(name, f'{what} "{shown}". {hint}', close)


def _close(name: str, records: Sequence[ModelRecord]) -> tuple[str, ...]:
    """Ids of the models with a name like this one, the closest first; then of those whose name contains it."""
    owners: dict[str, str] = {}
    for record in records:
        for known in (record.id, *record.aliases, record.name, record.stem, record.repository):
            if known is not None:
                owners.setdefault(known.casefold()[:NAME_CHARACTERS], record.id)
    asked = name.casefold()
    matches = difflib.get_close_matches(asked, owners, n=2 * CLOSE_NAMES)
    if len(asked) >= CONTAINED_CHARACTERS:
        matches += [known for known in sorted(owners) if asked in known]
    return tuple(dict.fromkeys(owners[match] for match in matches))[:CLOSE_NAMES]
