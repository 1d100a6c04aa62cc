"""The header reader on sound files: what the oracle reads, for next to nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from engines.artifact.gguf import ArrayStub, TextStub, read_facts, read_header
from engines.artifact.gguf_header import MAX_ARRAY_KEPT, MAX_TEXT_KEPT, ValueType, parse_header
from engines.artifact.kv import kv_bytes_per_layer, kv_bytes_per_token
from engines.artifact.stream import CHUNK_BYTES
from tests.engines.artifact.measured import CountedBytes, traced
from tests.engines.artifact.models import MODELS, TOKENS, Model
from tests.engines.artifact.oracle import assert_same
from tests.fixtures import headers as gguf_bytes
from tests.fixtures.headers import Entry, Listed, Raw, Tensor, Typed, Vocabulary, Writer
from tests.fixtures.tiny_gguf import make

REAL = Path(__file__).parents[3] / "artifacts/models/gemma-3-270m-q4_k_m.gguf"
"""Real weights, where a developer has them; the tests build the same shape where not."""
PEAK_BYTES = 1024 * 1024
"""Bound on the memory that reading one header takes: no vocabulary fits in it."""

EVERY_TYPE: dict[str, Entry] = {
    "general.architecture": "llama",
    "u8": Typed(gguf_bytes.UINT8, 255),
    "i8": Typed(gguf_bytes.INT8, -128),
    "u16": Typed(gguf_bytes.UINT16, 65_535),
    "i16": Typed(gguf_bytes.INT16, -32_768),
    "u32": Typed(gguf_bytes.UINT32, 2**32 - 1),
    "i32": Typed(gguf_bytes.INT32, -(2**31)),
    "f32": Typed(gguf_bytes.FLOAT32, 0.5),
    "yes": True,
    "no": False,
    "u64": Typed(gguf_bytes.UINT64, 2**64 - 1),
    "i64": Typed(gguf_bytes.INT64, -(2**63)),
    "f64": Typed(gguf_bytes.FLOAT64, 0.1),
    "text": "Grüße, 世界 🌍",
    "no text": "",
    "few": Listed(gguf_bytes.INT32, (1, -2, 3)),
    "truths": Listed(gguf_bytes.BOOL, (True, False)),
    "none": Listed(gguf_bytes.UINT8, ()),
    "no texts": [],
    "texts": ["a", "", "ö" * 200],
    "many": Listed(gguf_bytes.UINT8, (7,) * (MAX_ARRAY_KEPT + 1)),
    "as many as are kept": Listed(gguf_bytes.UINT8, (7,) * MAX_ARRAY_KEPT),
    "long text": "x" * (MAX_TEXT_KEPT + 1),
    "behind": 1,
}


def with_vocabulary(model: Model, count: int = TOKENS) -> dict[str, Entry]:
    """The model's keys, with so many tokens and what stands beside them."""
    return {
        **model.metadata,
        "tokenizer.ggml.tokens": Vocabulary(count),
        "tokenizer.ggml.scores": Listed(gguf_bytes.FLOAT32, (0.0,) * min(count, MAX_ARRAY_KEPT + 1)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_value_is_read_as_the_oracle_reads_it(tmp_path: Path, version: int) -> None:
    path = Writer(version).write(tmp_path / "types.gguf", EVERY_TYPE, (Tensor("a"), Tensor("b", (256, 2, 3), 12)))

    assert_same(read_header(path), path)


def test_version_1_says_the_same_as_version_3(tmp_path: Path) -> None:
    old, new = (read_header(Writer(version).write(tmp_path / f"{version}.gguf", EVERY_TYPE)) for version in (1, 3))

    assert old.version == 1
    assert list(old.metadata) == list(new.metadata)
    stubs = (ArrayStub, TextStub)
    for key, value in new.metadata.items():
        if isinstance(value, stubs):
            assert isinstance(old.metadata[key], stubs)
        else:
            assert old.metadata[key] == value
    assert old.tensors == new.tensors


def test_arrays_that_are_passed_over_keep_type_count_and_place(tmp_path: Path) -> None:
    path = Writer().write(tmp_path / "a.gguf", {"tokens": ["one", "two"], "scores": Listed(6, (1.5,) * 5000)})

    found = read_header(path).metadata
    tokens, scores = found["tokens"], found["scores"]

    assert isinstance(tokens, ArrayStub)
    assert (tokens.element, tokens.count) == (ValueType.STRING, 2)
    assert path.read_bytes()[tokens.offset :].startswith(b"\x03\0\0\0\0\0\0\0one")
    assert isinstance(scores, ArrayStub)
    assert (scores.element, scores.count) == (ValueType.FLOAT32, 5000)


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_the_alignment_decides_where_the_data_begins(tmp_path: Path, alignment: int) -> None:
    writer = Writer(alignment=alignment)
    path = writer.write(tmp_path / "a.gguf", {"general.alignment": alignment}, (Tensor("a", (3,)), Tensor("b", (5,))))

    header = read_header(path)

    assert header.data_offset % alignment == 0
    assert header.tensors[1].offset % alignment == 0
    assert_same(header, path)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_small_vocabulary_is_read_as_the_oracle_reads_it(tmp_path: Path, model: Model) -> None:
    path = Writer().write(tmp_path / "model.gguf", with_vocabulary(model, 64), model.tensors)

    assert_same(read_header(path), path)


@pytest.mark.parametrize(("number", "model"), list(enumerate(MODELS)), ids=[model.name for model in MODELS])
def test_a_vocabulary_of_262144_tokens_gives_the_right_facts(tmp_path: Path, number: int, model: Model) -> None:
    version = number % 3 + 1
    path = Writer(version).write(tmp_path / "model.gguf", with_vocabulary(model), model.tensors)

    facts = read_facts(path)
    size = path.stat().st_size
    path.unlink()

    assert {name: getattr(facts, name) for name in model.facts} == dict(model.facts)
    assert kv_bytes_per_token(facts) == model.kv
    assert facts.quantisation == "Q4_K_M"
    assert facts.chat_template == "{{ messages }}"
    assert facts.parameters == 256 * (32 + 8 + 4)
    assert facts.token_embedding_bytes == 256 * 32 * 2
    assert not facts.tied_output
    assert (facts.files, facts.weights_bytes, facts.format) == ((path,), size, "gguf")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_reading_costs_one_pass_over_the_header_and_little_memory(version: int) -> None:
    head, size = Writer(version).header(with_vocabulary(MODELS[0]), MODELS[0].tensors)
    source = CountedBytes(head + b"\xff" * size + b"\xff" * 10 * CHUNK_BYTES)
    length = len(source.getvalue())

    with traced() as memory:
        header = parse_header(source, length, Path("model.gguf"))

    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, ArrayStub)
    assert tokens.count == TOKENS
    assert source.read_bytes <= len(head) + 4 * CHUNK_BYTES
    assert source.calls <= len(head) // (CHUNK_BYTES - 64) + 4
    assert source.furthest <= header.data_offset + CHUNK_BYTES
    assert memory.peak < PEAK_BYTES


def test_a_long_list_of_numbers_is_not_read_at_all() -> None:
    numbers = Raw(gguf_bytes.ARRAY, Writer().pack("IQ", gguf_bytes.FLOAT32, 10**6) + bytes(4 * 10**6))
    head, size = Writer().header({"scores": numbers, "behind": 1}, (Tensor("a"),))
    source = CountedBytes(head + bytes(size))

    header = parse_header(source, len(head) + size, Path("model.gguf"))

    assert header.metadata["behind"] == 1
    assert source.read_bytes <= 2 * CHUNK_BYTES


def test_a_source_that_reads_in_small_pieces_gives_the_same_header() -> None:
    class Trickle(CountedBytes):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 1000))

    head, size = Writer().header(EVERY_TYPE, (Tensor("a"),))
    whole = head + bytes(size)

    trickled = parse_header(Trickle(whole), len(whole), Path("a"))

    assert trickled == parse_header(CountedBytes(whole), len(whole), Path("a"))


def test_the_tiny_model_is_read_as_the_oracle_reads_it(tmp_path: Path) -> None:
    path = make(tmp_path / "tiny.gguf", arch="qwen3", ctx=8192, layers=3, kv_heads=2, head_dim=32, type="Q8_0")

    facts = read_facts(path)

    assert_same(read_header(path), path)
    assert (facts.architecture, facts.trained_window, facts.layers, facts.quantisation) == ("qwen3", 8192, 3, "Q8_0")
    assert facts.chat_template is not None
    assert kv_bytes_per_token(facts) == 3 * 2 * (32 + 32) * 2


def test_a_split_by_the_oracle_is_one_model(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    writer.add_block_count(1)
    writer.add_context_length(512)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.zeros((4, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("*.gguf"))

    facts = read_facts(parts[1])

    assert [part.name for part in parts] == [f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    assert facts.files == tuple(parts)
    assert facts.weights_bytes == sum(part.stat().st_size for part in parts)
    assert facts.parameters == 5 * 128
    for part in parts:
        assert_same(read_header(part), part)


def test_gemma_is_read_as_the_oracle_reads_it_and_its_cache_as_measured(tmp_path: Path) -> None:
    path = REAL
    if not path.exists():
        gemma = next(model for model in MODELS if model.name == "Gemma-3-270m")
        path = Writer().write(tmp_path / "gemma.gguf", with_vocabulary(gemma), gemma.tensors)

    facts = read_facts(path)
    with traced() as memory:
        header = read_header(path)
    sizes = kv_bytes_per_layer(facts)

    assert memory.peak < PEAK_BYTES
    assert_same(header, path)
    assert facts.vocabulary == TOKENS
    assert facts.sliding_window == 512
    assert facts.sliding_pattern is not None
    assert sizes is not None
    # measured with llama-server: facts/llama-server.md of the specification; a sliding layer holds 512 + 512 cells
    for window, measured, full_attention in ((4096, 27, 72), (16_384, 63, 288)):
        cells = [1024 if slides else window for slides in facts.sliding_pattern]
        assert sum(size * held for size, held in zip(sizes, cells, strict=True)) == measured * 1024**2
        assert sum(sizes) * window == full_attention * 1024**2
