"""Reading an MLX model's folder: real ones, damaged ones, unfinished ones, and any bytes at all."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.artifact import mlx
from engines.artifact.errors import (
    ArtifactError,
    BringsCode,
    IncompleteModel,
    MalformedModel,
    ModelMissing,
    NotAModel,
    PickledWeights,
    TruncatedModel,
    UnfinishedDownload,
    UnreadableModel,
    UnsupportedModel,
)
from engines.artifact.facts import ModelKind
from engines.artifact.mlx import Contents, facts_from, known_to_engine, read_mlx
from engines.artifact.mlx_config import CONTAINERS
from engines.artifact.mlx_files import parse_object
from engines.artifact.mlx_shape import HEADS, HIDDEN, KV_HEADS, LAYERS, PATTERN, SLIDING
from engines.artifact.mlx_weights import INDEX, MAX_HEADER_BYTES, Tensor, Weights, parse_header
from engines.memory.cost import window_bytes
from tests.engines.artifact.measured import failure_of, traced

pytest.importorskip("tokenizers", reason="the tiny models need the MLX engine's own libraries")
pytest.importorskip("safetensors", reason="the tiny models need the MLX engine's own libraries")

from tests.fixtures.tiny_mlx import TEMPLATE, make_tiny_mlx_text, make_tiny_mlx_vision

PEAK_BYTES = 2 << 20
posix = pytest.mark.skipif(os.name == "nt", reason="links, pipes and modes are POSIX's")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_mlx_text(tmp_path_factory.mktemp("made") / "tiny-text", trained_window=4096)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A model of this test's own."""
    return Path(shutil.copytree(made, tmp_path / "tiny-text"))


def edit(folder: Path, name: str = "config.json", **changes: Any) -> None:
    """Change the keys of a JSON file; None takes one away."""
    path = folder / name
    document = (json.loads(path.read_text()) if path.exists() else {}) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def split(folder: Path, parts: int = 3) -> list[Path]:
    """Make the weights a family of files with an index."""
    whole = folder / "model.safetensors"
    files = [folder / f"model-{number + 1:05}-of-{parts:05}.safetensors" for number in range(parts)]
    for number, file in enumerate(files):
        file.write_bytes(safetensors({f"part.{number}.weight": ("BF16", [4, 4])}))
    edit(folder, INDEX, weight_map={f"part.{number}.weight": file.name for number, file in enumerate(files)})
    whole.unlink()
    return files


def safetensors(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    """A file of 16-bit tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return with_header(json.dumps(header).encode(), end)


def with_header(header: bytes, data: int) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(data)


def test_a_text_model_says_what_it_is(folder: Path) -> None:
    facts = read_mlx(folder)

    assert facts.files == (folder / "model.safetensors",)
    assert str(facts.files[0].parent) == str(folder)
    assert facts.weights_bytes == (folder / "model.safetensors").stat().st_size
    assert (facts.format, facts.architecture, facts.name, facts.kind) == ("mlx", "llama", None, ModelKind.CHAT)
    assert (facts.layers, facts.heads, facts.kv_heads, facts.key_length) == (2, (4, 4), (2, 2), 16)
    assert (facts.trained_window, facts.vocabulary, facts.quantisation) == (4096, 259, "F32")
    assert (facts.chat_template, facts.tokenizer) == (TEMPLATE, "PreTrainedTokenizerFast")
    assert (facts.modalities, facts.projector, facts.matrices, facts.pooling) == ((), None, None, None)


def test_a_vision_model_sees(tmp_path: Path) -> None:
    pytest.importorskip("mlx_vlm", reason="the tiny vision model is built by the MLX engine")
    facts = read_mlx(make_tiny_mlx_vision(tmp_path / "tiny-vision", trained_window=2048))

    assert (facts.architecture, facts.modalities, facts.trained_window) == ("qwen2_vl", ("image",), 2048)
    assert (facts.layers, facts.kv_heads, facts.key_length) == (2, (2, 2), 16)


def test_a_trailing_slash_is_not_kept(folder: Path) -> None:
    assert str(read_mlx(Path(f"{folder}{os.sep}")).files[0].parent) == str(folder)


def test_a_split_model_is_all_its_parts_in_order(folder: Path) -> None:
    files = split(folder)
    (folder / "consolidated.safetensors").write_bytes(b"a second copy")
    (folder / "extra.safetensors").write_bytes(b"not in the index")
    facts = read_mlx(folder)

    assert facts.files == tuple(files)
    assert facts.weights_bytes == sum(file.stat().st_size for file in files)
    assert (facts.quantisation, facts.parameters) == ("BF16", 3 * 16)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"chat_template.jinja": "own file", "chat_template.json": "processor", "inside": "tokenizer"}, "own file"),
        ({"chat_template.json": "processor", "inside": "tokenizer"}, "processor"),
        ({"inside": "tokenizer"}, "tokenizer"),
        ({"inside": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]}, "b"),
        ({"inside": [{"name": "rag", "template": "a"}]}, "a"),
        ({"inside": []}, None),
        ({"inside": "half \ud83d a character"}, "half ? a character"),
        ({}, None),
    ],
)
def test_where_the_chat_template_is(folder: Path, sources: dict[str, Any], expected: str | None) -> None:
    (folder / "chat_template.jinja").unlink()
    edit(folder, "tokenizer_config.json", chat_template=sources.get("inside"))
    if "chat_template.jinja" in sources:
        (folder / "chat_template.jinja").write_text(sources["chat_template.jinja"])
    if "chat_template.json" in sources:
        edit(folder, "chat_template.json", chat_template=sources["chat_template.json"])

    assert read_mlx(folder).chat_template == expected


def test_code_in_the_repository_is_no_obstacle_and_is_never_run(folder: Path) -> None:
    edit(folder, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    (folder / "modeling.py").write_text("raise SystemExit('run')")

    assert read_mlx(folder).architecture == "llama"


def truncate(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def write(name: str, data: bytes | str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


def remove(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lose_a_part(folder: Path) -> None:
    split(folder)[1].unlink()


def lose_a_part_and_the_index(folder: Path) -> None:
    lose_a_part(folder)
    (folder / INDEX).unlink()


def adapter(folder: Path) -> None:
    remove("config.json")(folder)
    (folder / "adapter_config.json").write_text("{}")


def change(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: edit(folder, **changes)


HUGE = with_header(b"", 0).replace(bytes(8), struct.pack("<Q", MAX_HEADER_BYTES + 1))
ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def entry(**changes: Any) -> Callable[[Path], object]:
    return write("model.safetensors", with_header(json.dumps({"a": ENTRY | changes}).encode(), 16))


DAMAGES: dict[str, tuple[Callable[[Path], object], type[ArtifactError], str]] = {
    "no config.json": (remove("config.json"), IncompleteModel, "config.json is missing"),
    "an adapter": (adapter, UnsupportedModel, "LoRA"),
    "a config.json that is no JSON": (write("config.json", "<html>"), MalformedModel, "config.json is no JSON (line 1"),
    "an empty config.json": (write("config.json", ""), MalformedModel, "config.json is no JSON"),
    "a config.json that is a list": (write("config.json", "[]"), MalformedModel, "holds no object, but a list"),
    "a config.json that is no text": (write("config.json", b"\xff\xfe\x00"), MalformedModel, "is no text"),
    "a config.json that is deep": (write("config.json", '{"a":' + "[" * 100_000), MalformedModel, "config.json is no"),
    "a number of 10,000 digits": (write("config.json", '{"a":' + "1" * 10_000 + "}"), MalformedModel, "no JSON"),
    "a config.json of 17 MiB": (write("config.json", b" " * (17 << 20)), MalformedModel, "larger than 16 MiB"),
    "no model_type": (change(model_type=None), MalformedModel, "does not say what model it is"),
    "a model_type that is a path": (change(model_type="../../x"), MalformedModel, "model_type"),
    "a model_type that is a number": (change(model_type=7), MalformedModel, "model_type"),
    "no weights": (remove("model.safetensors"), IncompleteModel, "no file with weights"),
    "pickled weights": (pickled, PickledWeights, "pytorch_model.bin"),
    "a part that the index names": (lose_a_part, IncompleteModel, "model-00002-of-00003.safetensors is missing"),
    "a part without an index": (lose_a_part_and_the_index, IncompleteModel, "model-00002-of-00003.safetensors"),
    "an index that is no JSON": (write(INDEX, "{"), MalformedModel, "index.json is no JSON"),
    "an index without a list": (write(INDEX, "{}"), MalformedModel, "lists no weights"),
    "an index that leads out": (write(INDEX, '{"weight_map": {"a": "../b.safetensors"}}'), MalformedModel, "beside it"),
    "an index that names a pickle": (write(INDEX, '{"weight_map": {"a": "b.bin"}}'), MalformedModel, "beside it"),
    "weights cut short": (lambda folder: truncate(folder / "model.safetensors", 1), TruncatedModel, "bytes"),
    "weights cut in the header": (
        lambda folder: truncate(folder / "model.safetensors", 430_000), TruncatedModel, "header"),
    "empty weights": (write("model.safetensors", b""), TruncatedModel, "0 bytes"),
    "weights with a tail": (
        lambda folder: append(folder / "model.safetensors", b"xyz"), MalformedModel, "3 bytes more"),
    "a web page": (write("model.safetensors", "<!DOCTYPE html><html>"), MalformedModel, "no file of weights"),
    "a header of 100 MB": (write("model.safetensors", HUGE), MalformedModel, "no file of weights"),
    "a header that is no JSON": (write("model.safetensors", with_header(b"{", 0)), MalformedModel, "no JSON"),
    "a header without tensors": (write("model.safetensors", with_header(b"{}", 0)), MalformedModel, "hold none"),
    "a tensor that is none": (
        write("model.safetensors", with_header(b'{"a": 1}', 0)), MalformedModel, "none of a tensor"),
    "a negative shape": (entry(shape=[-1, 2]), MalformedModel, "none of a tensor"),
    "a shape in words": (entry(shape="2"), MalformedModel, "none of a tensor"),
    "a shape of another size": (entry(shape=[2, 3]), MalformedModel, "another size"),
    "a shape that overflows": (entry(shape=[2**62, 2**62]), MalformedModel, "cannot be"),
    "offsets that run backwards": (entry(data_offsets=[16, 0]), MalformedModel, "cannot be"),
    "three offsets": (entry(data_offsets=[0, 16, 32]), MalformedModel, "none of a tensor"),
    "no tokenizer": (remove("tokenizer.json"), IncompleteModel, "tokenizer"),
    "a tokenizer_config.json that is no JSON": (
        write("tokenizer_config.json", "x"), MalformedModel, "tokenizer_config.json is no JSON"),
    "layers in words": (change(num_hidden_layers="two"), MalformedModel, "num_hidden_layers"),
    "half a layer": (change(num_hidden_layers=2.5), MalformedModel, "num_hidden_layers"),
    "a million layers": (change(num_hidden_layers=10**6), MalformedModel, "1,000,000 layers"),
    "true layers": (change(num_hidden_layers=True), MalformedModel, "num_hidden_layers"),
    "negative heads": (change(num_attention_heads=-4), MalformedModel, "is negative"),
    "heads without end": (change(num_attention_heads=10**30), MalformedModel, "more than"),
    "heads for other layers": (change(num_key_value_heads=[1, 2, 3]), MalformedModel, "3 numbers for 2 layers"),
    "a window that is infinite": (
        write("config.json", '{"model_type": "llama", "max_position_embeddings": Infinity}'), MalformedModel, "whole"),
    "a sliding window in words": (change(sliding_window="4k"), MalformedModel, "sliding_window"),
    "a container that is a list": (change(text_config=[1]), MalformedModel, "text_config"),
    "a quantisation of a word": (change(quantization="4bit"), MalformedModel, "quantization"),
    "GPTQ": (change(quantization_config={"quant_method": "gptq", "bits": 4}), UnsupportedModel, "gptq"),
    "its own program": (change(model_file="model.py"), BringsCode, "model_file"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_folder_is_one_clear_reason(folder: Path, case: str) -> None:
    damage, expected, said = DAMAGES[case]
    damage(folder)
    error = failure_of(read_mlx, folder)

    assert type(error) is expected
    assert said in error.sentence
    assert len(error.sentence) < 500
    assert error.code
    assert error.path == folder


def test_codes_differ_by_type() -> None:
    kinds = [IncompleteModel, UnfinishedDownload, PickledWeights, BringsCode, TruncatedModel, MalformedModel]

    assert len({kind.code for kind in kinds}) == len(kinds)


@pytest.mark.parametrize(
    "part", ["model.safetensors.incomplete", "model.safetensors.part", ".cache/huggingface/download/a1b2.incomplete"]
)
@pytest.mark.parametrize("case", ["no weights", "weights cut short", "no tokenizer", "a part that the index names"])
def test_what_a_download_left_explains_what_is_missing(folder: Path, part: str, case: str) -> None:
    (folder / part).parent.mkdir(parents=True, exist_ok=True)
    (folder / part).write_bytes(b"half")
    assert read_mlx(folder).format == "mlx"  # litter beside a whole model

    DAMAGES[case][0](folder)
    error = failure_of(read_mlx, folder)
    assert type(error) is UnfinishedDownload
    assert Path(part).name in error.sentence


@posix
def test_an_unfinished_snapshot_of_the_hub_is_said_with_its_name(folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--org--Tiny-4bit"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "0a1b"
    shutil.copytree(folder, snapshot)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../blobs/gone")
    with pytest.raises(IncompleteModel, match=r"^Tiny-4bit is incomplete: model.safetensors is missing"):
        read_mlx(snapshot)
    (repository / "blobs" / "a1.incomplete").write_bytes(b"half")
    with pytest.raises(UnfinishedDownload, match=r"^Tiny-4bit is not downloaded yet: model.safetensors"):
        read_mlx(snapshot)


def test_what_is_no_folder_is_said(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Path, type[ArtifactError]]] = [
        (tmp_path / "none", ModelMissing),
        (folder / "config.json", NotAModel),
        (tmp_path / "empty", IncompleteModel),
        (tmp_path / "a\0b", UnreadableModel),
        (tmp_path / ("x" * 300), UnreadableModel),
    ]
    for path, expected in cases:
        assert type(failure_of(read_mlx, path)) is expected


@posix
def test_a_pipe_is_no_weights_and_nobody_waits_for_it(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")

    assert type(failure_of(read_mlx, folder)) is MalformedModel


@posix
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_link_to_itself_is_unreadable(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(folder / name)

    assert type(failure_of(read_mlx, folder)) is UnreadableModel


@pytest.fixture
def engines_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path | None], None]]:
    """Put another engine in place of the installed one."""

    def install(place: Path | None) -> None:
        class Spec:
            submodule_search_locations = None if place is None else [str(place)]

        monkeypatch.setattr(mlx.importlib.util, "find_spec", lambda _: None if place is None else Spec())
        mlx._engines_models.cache_clear()

    yield install
    mlx._engines_models.cache_clear()


def test_an_architecture_that_the_engine_lacks_is_said(
    folder: Path, tmp_path: Path, engines_models: Callable[[Path | None], None]
) -> None:
    (tmp_path / "engine" / "models" / "qwen3").mkdir(parents=True)
    engines_models(tmp_path / "engine")
    assert "does not know the architecture llama" in failure_of(read_mlx, folder).sentence
    edit(folder, auto_map={"AutoModel": "modeling.Model"})
    assert type(failure_of(read_mlx, folder)) is BringsCode
    edit(folder, model_type="qwen3")
    assert read_mlx(folder).architecture == "qwen3"


@pytest.mark.parametrize("installed", [True, False])
def test_without_a_list_of_architectures_the_load_decides(
    folder: Path, tmp_path: Path, engines_models: Callable[[Path | None], None], installed: bool
) -> None:
    engines_models(tmp_path / "bundled" if installed else None)
    assert known_to_engine("llama") is None
    assert read_mlx(folder).architecture == "llama"


def test_the_installed_engine_is_not_imported(folder: Path) -> None:
    pytest.importorskip("mlx_vlm", reason="the MLX engine is not installed here")
    mlx._engines_models.cache_clear()

    assert known_to_engine("llama") is True
    assert known_to_engine("whisper-of-tomorrow") is False


NUMBER = st.one_of(st.none(), st.integers(-2, 80), st.integers(), st.floats(), st.booleans())
JSON = st.recursive(
    st.one_of(NUMBER, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=12,
)
KEYS = sorted(
    {*LAYERS, *HEADS, *KV_HEADS, *HIDDEN, *SLIDING, *PATTERN, *CONTAINERS, *mlx.WINDOW, *mlx.EXPERTS}
    | {"head_dim", "layer_types", "block_types", "hybrid_override_pattern", "full_attn_idxs", "attn_layer_period"}
    | {"full_attention_interval", "kv_lora_rank", "v_head_dim", "global_head_dim", "num_global_key_value_heads"}
    | {"quantization", "quantization_config", "vision_config", "architectures", "vocab_size", "num_kv_shared_layers"}
)
TYPES = st.sampled_from(["llama", "gemma3", "gemma4", "qwen3_next", "gpt_oss", "exaone4", "lfm2", "bert", "mamba"])
CONFIGS = st.builds(
    lambda kind, layers, others: others | {"model_type": kind, "num_hidden_layers": layers},
    st.one_of(TYPES, JSON),
    st.one_of(st.integers(0, 8), JSON),
    st.dictionaries(
        st.sampled_from(KEYS), st.one_of(st.integers(0, 512), JSON, st.lists(st.integers(0, 4))), max_size=12
    ),
)
ONE = Weights((Path("/m/model.safetensors"),), 10, (Tensor("a.weight", "BF16", (2, 2)),))


@given(CONFIGS, st.dictionaries(st.sampled_from(["model_max_length", "tokenizer_class"]), JSON))
@settings(deadline=None, max_examples=400)
def test_any_configuration_is_facts_that_can_be_reckoned_with_or_an_error(config: Any, tokenizer: Any) -> None:
    try:
        facts = facts_from(Contents(Path("/m"), config, ONE, tokenizer), known=lambda _: None)
    except ArtifactError as error:
        assert error.sentence.startswith("m ")
        return
    for pattern in (facts.kv_heads, facts.heads, facts.sliding_pattern):
        assert pattern is None or len(pattern) == facts.layers
    cost = window_bytes(facts, 4096)
    assert cost is None or cost >= 0


@given(st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
@settings(deadline=None)
def test_any_bytes_are_an_object_or_an_error(data: bytes) -> None:
    try:
        assert isinstance(parse_object(Path("/m"), "a.json", data), dict)
    except ArtifactError as error:
        assert type(error) is MalformedModel


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(JSON, st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON})),
        max_size=4,
    ),
    st.integers(0, 200),
)
@settings(deadline=None)
def test_any_header_is_tensors_or_an_error(header: dict[str, Any], size: int) -> None:
    try:
        parse_header(Path("/m"), "a.safetensors", json.dumps(header).encode(), size)
    except ArtifactError:
        return


def test_reading_takes_little_memory_whatever_the_size(folder: Path) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2**32, 2], "data_offsets": [0, 2**34]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(with_header(header, 0))
        file.truncate(8 + len(header) + 2**34)

    with traced() as memory:
        facts = read_mlx(folder)

    assert facts.parameters == 2**33
    assert memory.peak < PEAK_BYTES
