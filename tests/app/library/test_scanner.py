"""Finding models: real files, nothing fatal, nothing opened twice."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from app.library import scanner
from app.library.records import ModelRecord
from app.library.scanner import ScanResult, scan
from engines.artifact.facts import ModelFacts
from engines.artifact.gguf import read_facts
from tests.app.library.examples import write_model, write_projector

NOBODY = 65534
posix = pytest.mark.skipif(os.name == "nt", reason="links and modes are POSIX's")


def models(result: ScanResult) -> dict[str, ModelRecord]:
    return {record.id: record for record in result.records}


def spoil(path: Path) -> None:
    """Replace the contents behind the scanner's back: same size, same time."""
    before = path.stat()
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_folder_of_models_is_listed_with_their_facts(tmp_path: Path) -> None:
    write_model(tmp_path / "chat-Q4_K_M.gguf", name="Chat", template="{% if tools %}{% endif %}")
    write_model(tmp_path / "org" / "embedder" / "e5.gguf", name="E5", pooling=gguf.PoolingType.MEAN)
    write_model(tmp_path / "rank.gguf", name="Ranker", pooling=gguf.PoolingType.RANK)
    (tmp_path / "README.md").write_text("no model")
    result = scan([tmp_path], {})
    assert result.problems == ()
    assert [record.id for record in result.records] == ["chat-Q4_K_M", "e5", "rank"]
    chat, embedder, ranker = result.records
    assert (chat.name, chat.stem, chat.path) == ("Chat", "chat-Q4_K_M", tmp_path / "chat-Q4_K_M.gguf")
    assert (chat.capabilities, chat.broken, chat.repository) == (("chat", "tools"), None, None)
    assert chat.facts is not None
    assert (chat.facts.quantisation, chat.facts.trained_window) == ("Q4_K_M", 4096)
    assert chat.size_bytes == chat.path.stat().st_size
    assert (embedder.capabilities, embedder.repository) == (("embedding",), "org/embedder")
    assert ranker.capabilities == ("rerank",)


def test_a_split_family_is_one_model(tmp_path: Path) -> None:
    for part in range(3):
        write_model(tmp_path / f"big-{part + 1:05}-of-00003.gguf", part=part, parts=3)
    (record,) = scan([tmp_path], {}).records
    assert (record.id, record.stem, record.broken) == ("big", "big", None)
    assert record.path.name == "big-00001-of-00003.gguf"
    assert record.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_a_projector_belongs_to_its_model(tmp_path: Path) -> None:
    write_model(tmp_path / "see.gguf")
    write_projector(tmp_path / "mmproj-see.gguf")
    (record,) = scan([tmp_path], {}).records
    assert record.capabilities == ("chat", "vision")
    assert record.facts is not None
    assert record.facts.projector == tmp_path / "mmproj-see.gguf"
    assert record.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("page.gguf", b"<html>not found</html>", "not a GGUF"),
        ("empty.gguf", b"", ""),
        ("cut.gguf", None, "cut short"),
        ("half-00001-of-00002.gguf", None, "is not there"),
        ("half-00002-of-00002.gguf", None, "half-00001-of-00002.gguf"),
    ],
)
def test_a_broken_file_is_listed_with_the_reason(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    write_model(tmp_path / "whole.gguf")
    if content is None:
        content = (tmp_path / "whole.gguf").read_bytes()
        content = content[:-100] if name == "cut.gguf" else content
    (tmp_path / name).write_bytes(content)
    result = scan([tmp_path], {})
    assert len(result.records) == 2
    assert models(result)["whole"].broken is None
    (broken,) = (record for record in result.records if record.broken is not None)
    assert reason in (broken.broken or "")
    assert (broken.path, broken.facts, broken.capabilities) == (tmp_path / name, None, ())
    assert broken.size_bytes == len(content)


def test_a_reader_that_fails_does_not_take_the_library_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path / "good.gguf")
    write_model(tmp_path / "odd.gguf")

    def read(path: Path) -> ModelFacts:
        if path.name == "odd.gguf":
            raise IndexError("a mistake of ours")
        return read_facts(path)

    monkeypatch.setattr(scanner, "read_facts", read)
    found = models(scan([tmp_path], {}))
    assert found["good"].broken is None
    assert found["odd"].broken == "odd.gguf can not be read; the log says why."
    assert "IndexError" in caplog.text


def test_an_unchanged_file_is_not_opened_again(tmp_path: Path) -> None:
    for part in range(2):
        write_model(tmp_path / "split" / f"big-{part + 1:05}-of-00002.gguf", part=part, parts=2)
    write_model(tmp_path / "see" / "see.gguf")
    write_projector(tmp_path / "see" / "mmproj.gguf")
    (tmp_path / "page.gguf").write_text("<html>")
    first = scan([tmp_path], {})
    for file in tmp_path.rglob("*.gguf"):
        spoil(file)
    assert scan([tmp_path], first.cache) == first
    assert [record.broken is not None for record in scan([tmp_path], {}).records] == [True] * 3


@pytest.mark.parametrize("changed", ["see.gguf", "mmproj.gguf", "neighbour.gguf"])
def test_a_file_is_read_again_when_it_or_its_company_changes(tmp_path: Path, changed: str) -> None:
    write_model(tmp_path / "see.gguf")
    write_projector(tmp_path / "mmproj.gguf")
    first = scan([tmp_path], {})
    path = first.records[0].path
    write_model(tmp_path / changed, name="Other")
    stamps = [known[path].stamp for known in (first.cache, scan([tmp_path], first.cache).cache)]
    assert stamps[0] != stamps[1]


def test_a_replaced_file_keeps_its_id_and_gets_new_facts(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf", name="Old")
    first = scan([tmp_path], {})
    write_model(tmp_path / "a.gguf", name="New one")
    second = scan([tmp_path], first.cache)
    assert [(record.id, record.name) for record in second.records] == [("a", "New one")]


def test_a_missing_part_that_arrives_makes_the_model_whole(tmp_path: Path) -> None:
    write_model(tmp_path / "big-00001-of-00002.gguf", part=0, parts=2)
    first = scan([tmp_path], {})
    assert first.records[0].broken is not None
    write_model(tmp_path / "big-00002-of-00002.gguf", part=1, parts=2)
    second = scan([tmp_path], first.cache)
    assert [(record.id, record.broken) for record in second.records] == [("big", None)]


def test_a_deleted_file_leaves_the_list_and_the_cache(tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf")
    write_model(tmp_path / "b.gguf")
    first = scan([tmp_path], {})
    (tmp_path / "a.gguf").unlink()
    second = scan([tmp_path], first.cache)
    assert list(models(second)) == ["b"]
    assert list(second.cache) == [tmp_path / "b.gguf"]


def test_a_missing_folder_is_a_sentence_and_comes_back(tmp_path: Path) -> None:
    here, disk = tmp_path / "here", tmp_path / "disk"
    write_model(here / "a.gguf")
    first = scan([disk, here], {})
    assert list(models(first)) == ["a"]
    (said,) = first.problems
    assert str(disk) in said
    assert "Connect its disk" in said
    write_model(disk / "b.gguf")
    second = scan([disk, here], first.cache)
    assert list(models(second)) == ["a", "b"]
    assert second.problems == ()


def test_a_single_file_may_stand_for_a_folder(tmp_path: Path) -> None:
    for part in range(2):
        write_model(tmp_path / f"big-{part + 1:05}-of-00002.gguf", part=part, parts=2)
    write_model(tmp_path / "other.gguf")
    (record,) = scan([tmp_path / "big-00002-of-00002.gguf"], {}).records
    assert (record.id, record.path.name, record.broken) == ("big", "big-00001-of-00002.gguf", None)
    (tmp_path / "big-00001-of-00002.gguf").unlink()
    (record,) = scan([tmp_path / "big-00002-of-00002.gguf"], {}).records
    assert "big-00001-of-00002.gguf" in (record.broken or "")


def test_a_model_that_two_folders_lead_to_is_listed_once(tmp_path: Path) -> None:
    write_model(tmp_path / "org" / "name" / "a.gguf")
    folders = [tmp_path, tmp_path / "org", tmp_path / "org" / "name" / "a.gguf"]
    for order in (folders, folders[::-1]):
        assert [record.id for record in scan(order, {}).records] == ["a"]


@posix
def test_the_hubs_cache_lists_a_model_once_by_its_file_name(tmp_path: Path) -> None:
    cached = tmp_path / "models--org--name-GGUF"
    write_model(cached / "blobs" / "0a1b2c")
    for revision in ("r1", "r2"):
        snapshot = cached / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "name-Q8_0.gguf").symlink_to("../../blobs/0a1b2c")
    (record,) = scan([tmp_path], {}).records
    assert (record.id, record.repository, record.broken) == ("name-Q8_0", "org/name-GGUF", None)


@posix
def test_a_link_to_nothing_is_broken_until_it_leads_somewhere(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to("blob")
    first = scan([tmp_path], {})
    assert "is not there" in (first.records[0].broken or "")
    assert first.records[0].size_bytes == 0
    write_model(tmp_path / "blob")
    assert scan([tmp_path], first.cache).records[0].broken is None


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder that an ordinary user owns, while this thread is that user."""
    place = Path(tempfile.mkdtemp())
    os.chown(place, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield place
    finally:
        os.seteuid(0)
        shutil.rmtree(place)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="changing the user needs root")
def test_what_we_may_not_read_is_said_and_looked_at_again(nobodys: Path) -> None:
    write_model(nobodys / "open" / "a.gguf")
    write_model(nobodys / "closed" / "b.gguf")
    (nobodys / "open" / "a.gguf").chmod(0)
    (nobodys / "closed").chmod(0)
    folders = [nobodys / "open", nobodys / "closed", nobodys / "closed" / "b.gguf"]
    first = scan(folders, {})
    assert [record.id for record in first.records] == ["a"]
    assert "Permission denied" in (first.records[0].broken or "")
    assert [str(folder) in said for folder, said in zip(folders[1:], first.problems, strict=True)] == [True] * 2
    (nobodys / "open" / "a.gguf").chmod(0o600)
    (nobodys / "closed").chmod(0o700)
    second = scan(folders, first.cache)
    assert [(record.id, record.broken) for record in second.records] == [("a", None), ("b", None)]
    assert second.problems == ()


def test_a_thousand_files_are_read_once(tmp_path: Path) -> None:
    write_model(tmp_path / "0" / "model-0.gguf")
    content = (tmp_path / "0" / "model-0.gguf").read_bytes()
    for number in range(1, 1000):
        path = tmp_path / str(number % 50) / f"model-{number}.gguf"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    first = scan([tmp_path], {})
    assert len(first.records) == 1000
    assert all(record.broken is None for record in first.records)
    second = scan([tmp_path], first.cache)
    assert second.records == first.records
    assert all(then.facts is now.facts for then, now in zip(first.records, second.records, strict=True))
