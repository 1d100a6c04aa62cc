"""From headers to facts: splits, projectors, what is no model, and headers that contradict themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.artifact.errors import ArtifactError, MalformedModel, ModelMissing, TruncatedModel, UnsupportedModel
from engines.artifact.facts import ModelFacts, ModelKind
from engines.artifact.gguf import ArrayStub, Header, TensorInfo, TextStub, read_facts
from engines.artifact.gguf_facts import facts_from
from engines.artifact.gguf_header import ValueType
from engines.artifact.kv import kv_bytes_per_token
from tests.engines.artifact.measured import failure_of
from tests.fixtures.headers import F32, FLOAT32, INT32, Q4_K, UINT8, UINT16, Entry, Listed, Tensor, Typed, Writer

V3 = Writer()
LLAMA: dict[str, Entry] = {
    "general.architecture": "llama",
    "llama.context_length": 8192,
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
}
WEIGHTS = (Tensor("token_embd.weight", (256, 4)),)


def facts_of(tmp_path: Path, metadata: Mapping[str, Entry], *tensors: Tensor) -> ModelFacts:
    return read_facts(V3.write(tmp_path / "model.gguf", metadata, tensors or WEIGHTS))


def write_split(folder: Path, changes: Mapping[str, Entry] | None = None) -> list[Path]:
    """A split in three, of one tensor each; only the first part knows the model."""
    parts = []
    for number in (1, 2, 3):
        keys: dict[str, Entry] = dict(LLAMA) if number == 1 else {}
        keys |= {"split.no": Typed(UINT16, number - 1), "split.count": Typed(UINT16, 3)}
        keys |= {"split.tensors.count": Typed(INT32, 3)} | dict(changes or {})
        path = folder / f"model-{number:05}-of-00003.gguf"
        parts.append(V3.write(path, keys, (Tensor(f"t{number}", (256, number)),)))
    return parts


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_any_part_of_a_split_gives_the_whole_model(tmp_path: Path, asked: int) -> None:
    parts = write_split(tmp_path)

    facts = read_facts(parts[asked])

    assert facts.files == tuple(parts)
    assert facts.weights_bytes == sum(path.stat().st_size for path in parts)
    assert facts.parameters == 256 * (1 + 2 + 3)
    assert facts.architecture == "llama"


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(tmp_path: Path, missing: int) -> None:
    parts = write_split(tmp_path)
    parts[missing].unlink()

    error = failure_of(read_facts, parts[0])

    assert type(error) is ModelMissing
    assert error.path == parts[missing]
    assert parts[missing].name in error.sentence


def test_a_cut_part_is_named(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    parts[1].write_bytes(parts[1].read_bytes()[:-1100])

    error = failure_of(read_facts, parts[0])

    assert type(error) is TruncatedModel
    assert error.path == parts[1]


def test_a_part_under_another_name_says_what_it_should_be_called(tmp_path: Path) -> None:
    renamed = write_split(tmp_path)[0].rename(tmp_path / "renamed.gguf")

    error = failure_of(read_facts, renamed)

    assert type(error) is UnsupportedModel
    assert "-00001-of-00003.gguf" in error.sentence


def test_parts_in_the_wrong_order_contradict_themselves(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    parts[1].rename(tmp_path / "kept")
    parts[2].rename(parts[1])
    (tmp_path / "kept").rename(parts[2])

    error = failure_of(read_facts, parts[0])

    assert type(error) is MalformedModel
    assert error.path == parts[1]
    assert "part 3 of 3" in error.sentence


def test_parts_of_another_count_contradict_themselves(tmp_path: Path) -> None:
    parts = write_split(tmp_path, {"split.count": Typed(UINT16, 2)})

    assert type(failure_of(read_facts, parts[0])) is MalformedModel


def test_a_split_with_tensors_missing_contradicts_itself(tmp_path: Path) -> None:
    parts = write_split(tmp_path, {"split.tensors.count": Typed(INT32, 7)})

    error = failure_of(read_facts, parts[0])

    assert type(error) is MalformedModel
    assert "3 tensors, and should hold 7" in error.sentence


PROJECTOR: dict[str, Entry] = {
    "general.architecture": "clip",
    "general.type": "mmproj",
    "clip.has_vision_encoder": True,
    "clip.vision.projection_dim": 64,
}


@pytest.mark.parametrize(
    ("keys", "modalities"),
    [
        ({}, ("image",)),
        ({"clip.has_audio_encoder": True}, ("image", "audio")),
        ({"clip.has_vision_encoder": False, "clip.has_audio_encoder": True}, ("audio",)),
        ({"clip.has_vision_encoder": False}, ()),
    ],
)
def test_a_lone_projector_beside_the_model_is_its_own(
    tmp_path: Path, keys: dict[str, Entry], modalities: tuple[str, ...]
) -> None:
    projector = V3.write(tmp_path / "mmproj-model-f16.gguf", PROJECTOR | keys)

    facts = facts_of(tmp_path, LLAMA)

    assert facts.projector == projector
    assert facts.projector_bytes == projector.stat().st_size
    assert facts.modalities == modalities
    assert facts.weights_bytes == (tmp_path / "model.gguf").stat().st_size


def test_without_one_or_with_several_projectors_there_is_none(tmp_path: Path) -> None:
    assert facts_of(tmp_path, LLAMA).projector is None

    V3.write(tmp_path / "model-mmproj-f16.gguf", PROJECTOR)
    V3.write(tmp_path / "MMPROJ-F32.GGUF", PROJECTOR)

    facts = facts_of(tmp_path, LLAMA)
    assert (facts.projector, facts.projector_bytes, facts.modalities) == (None, 0, ())


@pytest.mark.parametrize(("width", "belongs"), [(64, True), (128, False)])
def test_among_several_models_a_projector_belongs_to_those_of_its_width(
    tmp_path: Path, width: int, belongs: bool
) -> None:
    V3.write(tmp_path / "mmproj.gguf", PROJECTOR)
    V3.write(tmp_path / "other.gguf", LLAMA, WEIGHTS)

    facts = facts_of(tmp_path, LLAMA | {"llama.embedding_length": width})

    assert (facts.projector is not None) is belongs


def test_alone_with_its_projector_a_model_has_it_whatever_the_width(tmp_path: Path) -> None:
    """Old converters wrote other numbers."""
    V3.write(tmp_path / "mmproj.gguf", PROJECTOR | {"clip.vision.projection_dim": 768})

    assert facts_of(tmp_path, LLAMA).projector is not None


def test_a_broken_projector_is_named(tmp_path: Path) -> None:
    projector = V3.write(tmp_path / "mmproj.gguf", PROJECTOR)
    projector.write_bytes(projector.read_bytes()[:-2000])

    error = failure_of(facts_of, tmp_path, LLAMA)

    assert type(error) is TruncatedModel
    assert error.path == projector


def test_a_model_with_the_name_of_a_projector_is_none(tmp_path: Path) -> None:
    V3.write(tmp_path / "mmproj.gguf", LLAMA)

    assert type(failure_of(facts_of, tmp_path, LLAMA)) is UnsupportedModel


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        (PROJECTOR, "projector"),
        ({"general.architecture": "clip"}, "projector"),
        (LLAMA | {"general.type": "adapter"}, "LoRA"),
        ({"general.type": "imatrix"}, "statistics"),
    ],
)
def test_what_is_no_model_is_said(tmp_path: Path, metadata: dict[str, Entry], word: str) -> None:
    error = failure_of(facts_of, tmp_path, metadata)

    assert type(error) is UnsupportedModel
    assert word in error.sentence


def test_a_vocabulary_without_weights_is_no_model(tmp_path: Path) -> None:
    path = V3.write(tmp_path / "vocab.gguf", LLAMA, ())

    error = failure_of(read_facts, path)

    assert type(error) is UnsupportedModel
    assert "no weights" in error.sentence


@pytest.mark.parametrize(
    "change",
    [
        {"general.architecture": ""},
        {"general.architecture": 1},
        {"general.name": 1},
        {"general.file_type": "Q4_K_M"},
        {"llama.context_length": "long"},
        {"llama.context_length": True},
        {"llama.context_length": 1.5},
        {"llama.context_length": Typed(INT32, -1)},
        {"llama.context_length": Listed(INT32, (1, 2))},
        {"llama.block_count": 4097},
        {"llama.block_count": 2**32 - 1},
        {"llama.attention.head_count": Listed(INT32, (4,))},
        {"llama.attention.head_count": Listed(INT32, (4, 4, 4))},
        {"llama.attention.head_count": Listed(INT32, (4,) * 5000)},
        {"llama.attention.head_count_kv": Listed(INT32, (4, -4))},
        {"llama.attention.head_count_kv": Listed(FLOAT32, (4.0, 4.0))},
        {"llama.attention.head_count_kv": ["4", "4"]},
        {"llama.attention.max_alibi_bias": "8"},
        {"llama.expert_used_count": Listed(INT32, (-1,))},
        {"tokenizer.ggml.tokens": "a b c"},
        {"tokenizer.chat_template": Listed(UINT8, (1,))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_key_of_the_wrong_kind_is_named(tmp_path: Path, change: dict[str, Entry]) -> None:
    error = failure_of(facts_of, tmp_path, LLAMA | change)

    assert type(error) is MalformedModel
    assert error.path == tmp_path / "model.gguf"
    (key,) = change
    assert key in error.sentence or "architecture" in error.sentence


def test_a_model_without_an_architecture_is_malformed(tmp_path: Path) -> None:
    assert type(failure_of(facts_of, tmp_path, {"general.name": "x"})) is MalformedModel


def test_what_a_header_does_not_say_is_not_guessed(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"general.architecture": "somethingnew"}, Tensor("a", (256, 1)))

    unknown: tuple[str, ...] = (
        "name",
        "trained_window",
        "layers",
        "embedding_length",
        "heads",
        "kv_heads",
        "key_length",
    )
    unknown += ("value_length", "vocabulary", "sliding_window", "sliding_pattern", "kv_lora_rank", "experts")
    unknown += ("shared_kv_layers", "experts_used", "tokenizer", "chat_template", "pooling", "token_embedding_bytes")
    assert {name: getattr(facts, name) for name in unknown} == dict.fromkeys(unknown)
    assert facts.kind is ModelKind.CHAT
    assert facts.tied_output
    assert kv_bytes_per_token(facts) is None


def test_the_vocabulary_is_counted_or_declared(tmp_path: Path) -> None:
    assert facts_of(tmp_path, LLAMA | {"llama.vocab_size": 7}).vocabulary == 7
    listed: dict[str, Entry] = {"llama.vocab_size": 7, "tokenizer.ggml.tokens": ["a", "b"]}
    assert facts_of(tmp_path, LLAMA | listed).vocabulary == 2


@pytest.mark.parametrize(
    ("file_type", "tensors", "name"),
    [
        (15, (Tensor("a", (256, 1), F32),), "Q4_K_M"),
        (15 + 1024, (Tensor("a", (256, 1), F32),), "Q4_K_M"),
        (0, (Tensor("a", (256, 1)),), "F32"),
        (None, (Tensor("norm", (256_000,), F32), Tensor("a", (256, 9), Q4_K), Tensor("b", (256, 8))), "Q4_K_M"),
        (999, (Tensor("a", (256, 9)), Tensor("b", (256, 8), Q4_K)), "F16"),
        (None, (Tensor("norm", (256,), F32),), None),
    ],
)
def test_the_quantisation_is_declared_or_that_of_most_weights(
    tmp_path: Path, file_type: int | None, tensors: tuple[Tensor, ...], name: str | None
) -> None:
    declared: dict[str, Entry] = {} if file_type is None else {"general.file_type": file_type}

    assert facts_of(tmp_path, LLAMA | declared, *tensors).quantisation == name


def test_the_tensors_that_a_placement_asks_for_are_weighed(tmp_path: Path) -> None:
    tensors = (
        Tensor("token_embd.weight", (256, 10)),
        Tensor("blk.0.ffn_up_exps.weight", (256, 4, 8), Q4_K),
        Tensor("blk.0.ffn_down_exps.weight", (256, 2)),
        Tensor("blk.0.ffn_up_shexp.weight", (256, 2)),
    )

    facts = facts_of(tmp_path, LLAMA, *tensors)

    assert facts.token_embedding_bytes == 256 * 10 * 2
    assert facts.expert_bytes == 4 * 8 * 144 + 256 * 2 * 2
    assert facts.tied_output
    assert not facts_of(tmp_path, LLAMA, Tensor("output.weight")).tied_output


def test_a_type_of_tensor_that_is_not_known_yet_passes(tmp_path: Path) -> None:
    head = V3.start(1, len(LLAMA)) + b"".join(V3.entry(key, value) for key, value in LLAMA.items())
    path = tmp_path / "model.gguf"
    path.write_bytes(head + V3.tensor("token_embd.weight", (256, 2), 77, 0) + bytes(1000))

    facts = read_facts(path)

    assert facts.parameters == 512
    assert facts.token_embedding_bytes is None
    assert facts.quantisation is None


KEYS = [
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.recurrent_layers",
    "attention.shared_kv_layers",
    "full_attention_interval",
    "nextn_predict_layers",
    "pooling_type",
    "expert_used_count",
]
NUMBERS = st.one_of(st.booleans(), st.integers(-1, 9), st.integers(-(2**63), 2**64), st.floats())
VALUES = st.one_of(
    NUMBERS,
    st.text(max_size=3),
    st.lists(NUMBERS, max_size=6).map(tuple),
    st.builds(ArrayStub, st.sampled_from(list(ValueType)), st.integers(0, 2**30), st.just(0)),
    st.builds(TextStub, st.integers(0, 2**30), st.just(0)),
)


@given(
    st.sampled_from(["gemma3", "qwen35", "gemma3n", "mamba", "llama4", "bert", "deepseek2", "llama"]),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8),
    st.dictionaries(st.sampled_from(["general.name", "general.type", "split.count", "split.no"]), VALUES, max_size=1),
)
@settings(deadline=None, max_examples=400)
def test_any_keys_are_facts_that_agree_with_themselves_or_an_error(
    architecture: str, keys: dict[str, Any], general: dict[str, Any]
) -> None:
    metadata = {"general.architecture": architecture, **general}
    metadata |= {f"{architecture}.{key}": value for key, value in keys.items()}
    tensor = TensorInfo("a", (1,), 0, 0, 1, 4)
    try:
        facts = facts_from([Header(Path("model.gguf"), 3, 32, metadata, (tensor,), 0, 4)])
    except ArtifactError:
        return

    size = kv_bytes_per_token(facts)
    assert size is None or size >= 0
    for per_layer in (facts.heads, facts.kv_heads, facts.sliding_pattern):
        assert per_layer is None or len(per_layer) == facts.layers
