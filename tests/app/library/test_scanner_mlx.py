"""Finding MLX models: one a folder, whole or broken, beside GGUF files and in the hub's cache."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from app.library import scanner
from app.library.records import ModelRecord
from app.library.scanner import ScanResult, scan
from engines.artifact.facts import ModelFacts
from tests.app.library.examples import write_model

pytest.importorskip("tokenizers", reason="the tiny models need the MLX engine's own libraries")
pytest.importorskip("safetensors", reason="the tiny models need the MLX engine's own libraries")

from tests.fixtures.tiny_mlx import make_tiny_mlx_text

posix = pytest.mark.skipif(os.name == "nt", reason="links are POSIX's")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_mlx_text(tmp_path_factory.mktemp("made") / "tiny")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def put(made: Path, folder: Path) -> Path:
    return Path(shutil.copytree(made, folder))


def cached(made: Path, hub: Path, repository: str, revision: str) -> Path:
    """A snapshot as the hub's client makes it: links to blobs."""
    place = hub / f"models--{repository.replace('/', '--')}"
    snapshot = place / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (place / "blobs").mkdir(exist_ok=True)
    for file in made.iterdir():
        shutil.copy(file, place / "blobs" / f"blob-{file.name}")
        (snapshot / file.name).symlink_to(f"../../blobs/blob-{file.name}")
    return snapshot


def only(result: ScanResult) -> ModelRecord:
    (record,) = result.records
    return record


def test_a_folder_is_one_model(made: Path, models: Path) -> None:
    folder = put(made, models / "mlx-community" / "Tiny-Llama-4bit")
    result = scan([models], {})
    record = only(result)

    assert result.problems == ()
    assert (record.id, record.name, record.stem) == ("Tiny-Llama-4bit",) * 3
    assert (record.path, record.repository, record.broken) == (folder, "mlx-community/Tiny-Llama-4bit", None)
    assert record.facts is not None
    assert (record.facts.format, record.facts.files[0].parent) == ("mlx", folder)
    assert record.capabilities == ("chat",)
    assert record.size_bytes == (folder / "model.safetensors").stat().st_size
    assert record.modified == pytest.approx((folder / "model.safetensors").stat().st_mtime)


def test_it_lives_beside_gguf_files(made: Path, models: Path) -> None:
    put(made, models / "tiny-mlx")
    write_model(models / "other.gguf")
    both = models / "both"
    put(made, both)
    write_model(both / "converted.gguf")

    found = {record.id: record.facts.format for record in scan([models], {}).records if record.facts is not None}
    assert found == {"tiny-mlx": "mlx", "other": "gguf", "converted": "gguf"}


def test_nothing_below_a_model_is_a_model_of_its_own(made: Path, models: Path) -> None:
    folder = put(made, models / "tiny")
    put(made, folder / "original")
    (folder / "1_Dense").mkdir()
    shutil.copy(folder / "model.safetensors", folder / "1_Dense")
    (folder / "1_Dense" / "config.json").write_text("{}")
    write_model(folder / "gguf" / "a.gguf")

    assert only(scan([models], {})).path == folder


@pytest.mark.parametrize(
    "names",
    [
        ["config.json", "tokenizer.json"],
        ["model.safetensors"],
        ["diffusion_pytorch_model.safetensors", "tokenizer.json"],
        ["adapter_model.safetensors", "tokenizer.json", "adapter_config.json"],
        ["config.json", "training_args.bin"],
        ["model_index.json", "config.json", "model.safetensors"],
    ],
)
def test_what_other_programs_keep_is_left_out(made: Path, models: Path, names: list[str]) -> None:
    folder = models / "other"
    folder.mkdir()
    for name in names:
        source = made / (name if (made / name).exists() else "model.safetensors")
        shutil.copy(source, folder / name)

    assert scan([models], {}).records == ()


def test_a_pipeline_for_pictures_hides_its_parts(made: Path, models: Path) -> None:
    put(made, models / "picture" / "text_encoder")
    (models / "picture" / "model_index.json").write_text("{}")

    assert scan([models], {}).records == ()


@pytest.mark.parametrize(
    ("lost", "added", "reason"),
    [
        ("config.json", None, "config.json is missing"),
        ("tokenizer.json", None, "tokenizer"),
        ("model.safetensors", "pytorch_model.bin", "pytorch_model.bin"),
        ("model.safetensors", "model.safetensors.incomplete", "not downloaded yet"),
        ("model.safetensors", ".cache/huggingface/download/0a.incomplete", "not downloaded yet"),
        ("model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors is missing"),
        ("model.safetensors", "model.safetensors", "0 bytes"),
    ],
)
def test_a_broken_one_is_listed_with_the_reason_and_heals(
    made: Path, models: Path, lost: str, added: str | None, reason: str
) -> None:
    folder = put(made, models / "tiny")
    (folder / lost).unlink()
    if added is not None:
        (folder / added).parent.mkdir(parents=True, exist_ok=True)
        (folder / added).write_bytes(b"")
    first = scan([models], {})
    record = only(first)
    assert reason in (record.broken or "")
    assert (record.id, record.path, record.facts, record.capabilities) == ("tiny", folder, None, ())

    if added is not None:
        (folder / added).unlink()
    shutil.copy(made / lost, folder / lost)
    healed = only(scan([models], first.cache))
    assert (healed.id, healed.broken) == ("tiny", None)


def test_an_unchanged_folder_is_not_opened_again(made: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put(made, models / "tiny")
    opened: list[Path] = []
    read = scanner.read_mlx

    def counting(path: Path) -> ModelFacts:
        opened.append(path)
        return read(path)

    monkeypatch.setattr(scanner, "read_mlx", counting)
    first = scan([models], {})
    assert scan([models], first.cache) == first
    assert opened == [folder]
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 77}
    (folder / "config.json").write_text(json.dumps(config))
    facts = only(scan([models], first.cache)).facts
    assert facts is not None
    assert (facts.trained_window, len(opened)) == (77, 2)


def test_two_of_one_name_keep_their_ids(made: Path, models: Path) -> None:
    late = put(made, models / "b" / "tiny")
    first = scan([models], {})
    early = put(made, models / "a" / "tiny")
    ids = {record.path: record.id for record in scan([models], first.cache).records}
    assert ids[late] == "tiny"
    assert ids[early].startswith("tiny-")


@pytest.mark.parametrize("name", ["", "config.json", "model.safetensors"])
def test_a_model_may_be_named_by_its_folder_or_a_file_in_it(made: Path, models: Path, name: str) -> None:
    folder = put(made, models / "tiny")
    for folders in ([folder / name], [folder / name, models], [models, folder / name]):
        assert only(scan(folders, {})).path == folder


@posix
def test_the_hubs_cache_lists_the_current_revision_by_its_repository(made: Path, models: Path) -> None:
    old = cached(made, models, "mlx-community/Tiny-4bit", "0a")
    new = cached(made, models, "mlx-community/Tiny-4bit", "0b")
    os.utime(old, (1, 1))
    first = scan([models], {})
    record = only(first)
    assert (record.path, record.broken) == (new, None)
    assert (record.id, record.name, record.repository) == ("Tiny-4bit", "Tiny-4bit", "mlx-community/Tiny-4bit")

    refs = new.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("0a")
    record = only(scan([models], first.cache))
    assert (record.id, record.path) == ("Tiny-4bit", old)


@posix
def test_a_link_that_leads_out_is_said_and_not_followed(made: Path, models: Path, tmp_path: Path) -> None:
    folder = put(made, models / "tiny")
    (folder / "model.safetensors").rename(tmp_path / "secret.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    record = only(scan([models], {}))
    assert "model.safetensors is a link that leads out of" in (record.broken or "")
    assert only(scan([folder], {})).broken is None  # the user named this very folder


@posix
def test_a_folder_that_is_a_link_is_not_entered(made: Path, models: Path, tmp_path: Path) -> None:
    (models / "link").symlink_to(put(made, tmp_path / "elsewhere"))
    assert scan([models], {}).records == ()
