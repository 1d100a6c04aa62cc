from __future__ import annotations

import io
import stat
import sys
import tarfile
import zipfile
from pathlib import PurePosixPath

import pytest
from archives import collapse_duplicates, collapse_plan, entry_path, unpack
from steps import SetupError

ESCAPES = ["../evil", "a/../../evil", "/etc/evil", "C:/evil", "C:evil", "..\\evil", "a\\evil", "", ".."]


def make_zip(path, entries):
    with zipfile.ZipFile(path, "w") as target:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            target.writestr(info, content)
    return path


def make_tar(path, entries):
    with tarfile.open(path, "w:gz") as target:
        for entry, content in entries:
            entry.size = len(content)
            target.addfile(entry, io.BytesIO(content))
    return path


def tar_file(name, mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    return entry


def tar_link(name, to, kind=tarfile.SYMTYPE):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, to
    return entry


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", ESCAPES)
def test_an_entry_name_that_leaves_the_folder_is_refused(name):
    with pytest.raises(SetupError) as refused:
        entry_path(name)
    assert refused.value.code == "archive"


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "..\\evil"])
def test_zip_slip_is_refused_and_writes_nothing(tmp_path, name):
    archive = make_zip(tmp_path / "bad.whl", [("good", b"1", 0o644), (name, b"2", 0o644)])
    folder = tmp_path / "deep" / "folder"
    with pytest.raises(SetupError):
        unpack(archive, folder)
    assert everything_below(tmp_path) == ["bad.whl"]


def test_zip_slip_is_refused_even_in_what_is_left_out(tmp_path):
    archive = make_zip(tmp_path / "bad.zip", [("good", b"1", 0o644), ("../evil", b"2", 0o644)])
    with pytest.raises(SetupError):
        unpack(archive, tmp_path / "folder", lambda path: path if path.name == "good" else None)
    assert everything_below(tmp_path) == ["bad.zip"]


def test_a_place_chosen_outside_the_folder_is_refused(tmp_path):
    archive = make_zip(tmp_path / "good.zip", [("good", b"1", 0o644)])
    with pytest.raises(SetupError):
        unpack(archive, tmp_path / "folder", lambda path: PurePosixPath("..") / path)


def test_a_link_in_a_zip_is_refused(tmp_path):
    archive = make_zip(tmp_path / "bad.zip", [("link", b"/etc/passwd", stat.S_IFLNK | 0o777)])
    with pytest.raises(SetupError, match="no file"):
        unpack(archive, tmp_path / "folder")


@pytest.mark.parametrize(
    "entry",
    [
        tar_file("../evil"),
        tar_file("/tmp/evil"),
        tar_link("link", "/etc/passwd"),
        tar_link("link", "../outside"),
        tar_link("link", "folder/inside"),
        tar_link("hard", "good", tarfile.LNKTYPE),
        tar_link("pipe", "", tarfile.FIFOTYPE),
    ],
    ids=lambda entry: f"{entry.name}-{entry.linkname or entry.type!r}",
)
def test_tar_entries_that_are_neither_file_nor_link_to_a_neighbour_are_refused(tmp_path, entry):
    archive = make_tar(tmp_path / "bad.tar.gz", [(entry, b"")])
    with pytest.raises(SetupError):
        unpack(archive, tmp_path / "folder")
    assert not list((tmp_path / "folder").rglob("*"))


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links of POSIX")
def test_a_release_archive_unpacks_flat_with_its_links_and_modes(tmp_path):
    archive = make_tar(
        tmp_path / "good.tar.gz",
        [
            (tar_file("build/server", 0o4755), b"program"),
            (tar_link("build/libx.so", "libx.so.1"), b""),
            (tar_file("build/libx.so.1"), b"library"),
        ],
    )
    unpack(archive, tmp_path / "bin", lambda path: PurePosixPath(path.name))
    assert everything_below(tmp_path / "bin") == ["libx.so", "libx.so.1", "server"]
    assert (tmp_path / "bin" / "libx.so").read_bytes() == b"library"
    assert stat.S_IMODE((tmp_path / "bin" / "server").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "bin" / "libx.so.1").stat().st_mode) == 0o644


def test_nothing_is_written_through_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    archive = make_tar(tmp_path / "bad.tar.gz", [(tar_link("a/name", "x"), b""), (tar_file("b/name"), b"theirs")])
    folder = tmp_path / "folder"
    unpack(archive, folder, lambda path: PurePosixPath(path.name))
    assert (folder / "name").is_symlink()
    assert outside.read_bytes() == b"mine"


def test_two_entries_for_one_place_are_refused(tmp_path):
    archive = make_zip(tmp_path / "bad.zip", [("a/name", b"1", 0o644), ("b/name", b"2", 0o644)])
    with pytest.raises(SetupError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "folder", lambda path: PurePosixPath(path.name))


@pytest.mark.parametrize("name", ["broken.whl", "broken.zip", "broken.tar.gz"])
def test_what_is_no_archive_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"no archive at all")
    with pytest.raises(SetupError, match=f"{name} cannot be unpacked"):
        unpack(tmp_path / name, tmp_path / "folder")


@pytest.mark.parametrize(
    ("digests", "links"),
    [
        ({}, {}),
        ({"a": "1", "b": "2"}, {}),
        (
            {"libx.so": "1", "libx.so.0": "1", "libx.so.0.2": "1", "server": "2"},
            {"libx.so": "libx.so.0.2", "libx.so.0": "libx.so.0.2"},
        ),
        ({"b": "1", "a": "1"}, {"a": "b"}),
    ],
)
def test_of_equal_files_the_longest_name_stays(digests, links):
    assert collapse_plan(digests) == links


@pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")
def test_equal_files_become_relative_links(tmp_path):
    for name, content in {"lib.so": b"same", "lib.so.1": b"same", "other": b"else"}.items():
        (tmp_path / name).write_bytes(content)
    assert collapse_duplicates(tmp_path) == len(b"same")
    assert (tmp_path / "lib.so").readlink().name == "lib.so.1"
    assert (tmp_path / "lib.so").read_bytes() == b"same"
    assert everything_below(tmp_path) == ["lib.so", "lib.so.1", "other"]
    assert collapse_duplicates(tmp_path) == 0
