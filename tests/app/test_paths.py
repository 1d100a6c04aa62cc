"""The home: private, atomic, and clear about why it can not be used."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import paths
from app.paths import HomeError, home, home_error, prepare, write_private

NOBODY = 65534
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has access lists, not modes")
as_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="mounts and other users need root on Linux",
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


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
        subprocess.run(["rm", "-r", place], check=True)


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        (disk / "ballast").write_bytes(bytes(1 << 20))


def test_a_given_directory_holds_everything(tmp_path: Path) -> None:
    here = home(tmp_path / "run")
    names = [name for name in dir(type(here)) if isinstance(getattr(type(here), name), property)]
    assert len(names) == 10
    assert len({getattr(here, name) for name in names}) == 10
    for name in names:
        assert getattr(here, name).is_relative_to(tmp_path / "run"), name


def test_a_relative_directory_stays_put_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert home(Path("run")).root == tmp_path / "run"


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders are Linux's")
def test_without_a_directory_the_users_data_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert home(None).root == tmp_path / "Plimsoll"
    assert not (tmp_path / "Plimsoll").exists()


@posix
def test_folders_are_private_from_the_start_whatever_the_umask(tmp_path: Path) -> None:
    here = home(tmp_path / "deep" / "run")
    old = os.umask(0)
    try:
        assert prepare(here) == []
    finally:
        os.umask(old)
    for folder in (here.root, here.models, here.logs, here.child_config):
        assert mode(folder) == 0o700, folder
    assert list(here.child_config.iterdir()) == []
    assert prepare(here) == []


@posix
@pytest.mark.parametrize("name", ["settings", "endpoint_file", "ledger", "keys"])
@pytest.mark.parametrize("loose", [0o644, 0o640, 0o666, 0o604])
def test_a_loose_secret_is_repaired_and_said(tmp_path: Path, name: str, loose: int) -> None:
    here = home(tmp_path / "run")
    prepare(here)
    secret: Path = getattr(here, name)
    secret.write_text("x")
    secret.chmod(loose)
    (said,) = prepare(here)
    assert str(secret) in said
    assert f"{loose:04o}" in said
    assert mode(secret) == 0o600
    assert secret.read_text() == "x"


@posix
def test_a_loose_home_is_repaired_and_said(tmp_path: Path) -> None:
    here = home(tmp_path / "run")
    here.root.mkdir(mode=0o755)
    said = prepare(here)
    assert [str(here.root) in sentence for sentence in said] == [True]
    assert mode(here.root) == 0o700


def test_stray_configuration_for_children_is_said(tmp_path: Path) -> None:
    here = home(tmp_path / "run")
    prepare(here)
    (here.child_config / "llama.cpp").mkdir()
    (said,) = prepare(here)
    assert "llama.cpp" in said
    assert (here.child_config / "llama.cpp").is_dir()


@pytest.mark.parametrize("below", ["", "deep/run"])
def test_a_file_in_place_of_the_home_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(HomeError) as caught:
        prepare(home(tmp_path / "file" / below))
    assert caught.value.code == "home_not_a_folder"
    assert "--home" in caught.value.sentence
    assert (tmp_path / "file").read_text() == "mine"


@as_root
def test_another_users_home_is_refused_and_left_alone(tmp_path: Path) -> None:
    here = home(tmp_path / "run")
    here.root.mkdir(mode=0o755)
    os.chown(here.root, NOBODY, NOBODY)
    with pytest.raises(HomeError) as caught:
        prepare(here)
    assert caught.value.code == "home_not_ours"
    assert str(NOBODY) in caught.value.sentence
    assert mode(here.root) == 0o755
    assert list(here.root.iterdir()) == []


@as_root
def test_a_secret_that_is_not_ours_to_close_is_refused(nobodys: Path) -> None:
    here = home(nobodys / "run")
    prepare(here)
    here.endpoint_file.write_text("{}")
    os.seteuid(0)
    os.chown(here.endpoint_file, 0, 0)
    here.endpoint_file.chmod(0o644)
    os.seteuid(NOBODY)
    with pytest.raises(HomeError) as caught:
        prepare(here)
    assert caught.value.code == "home_not_ours"
    assert str(here.endpoint_file) in caught.value.sentence


@as_root
def test_a_folder_we_may_not_write_is_refused(nobodys: Path) -> None:
    nobodys.chmod(0o500)
    with pytest.raises(HomeError) as caught:
        prepare(home(nobodys / "run"))
    assert caught.value.code == "home_read_only"
    with pytest.raises(HomeError) as caught:
        write_private(nobodys / "keys.json", "x")
    assert caught.value.code == "home_read_only"


@as_root
def test_a_read_only_disk_is_refused_for_root_too(small_disk: Path) -> None:
    here = home(small_disk / "run")
    prepare(here)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(HomeError) as caught:
        prepare(here)
    assert caught.value.code == "home_read_only"


@as_root
def test_a_full_disk_is_said_and_keeps_the_old_file_whole(small_disk: Path) -> None:
    here = home(small_disk / "run")
    prepare(here)
    write_private(here.ledger, "old")
    fill(small_disk)
    with pytest.raises(HomeError) as caught:
        prepare(here)
    assert caught.value.code == "disk_full"
    with pytest.raises(HomeError) as caught:
        write_private(here.ledger, "new" * 4096)
    assert caught.value.code == "disk_full"
    assert here.ledger.read_text() == "old"
    assert sorted(entry.name for entry in here.root.iterdir()) == [
        "child-config",
        "logs",
        "models",
        "workers.json",
    ]


@posix
def test_a_private_file_is_0600_whatever_stood_there(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.json"
    path.write_text("before")
    path.chmod(0o666)
    old = os.umask(0)
    try:
        write_private(path, "naïve\r\n")
    finally:
        os.umask(old)
    assert path.read_bytes() == "naïve\r\n".encode()
    assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_a_private_file_never_shows_itself_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.json"
    write_private(path, "old")
    seen: list[tuple[str, set[int]]] = []
    real = os.fsync

    def look(handle: int) -> None:
        seen.append((path.read_text(), {mode(entry) for entry in tmp_path.iterdir()}))
        real(handle)

    monkeypatch.setattr(os, "fsync", look)
    write_private(path, "new")
    assert seen == [("old", {0o600}), ("new", {0o600})]


def test_a_text_that_can_not_be_encoded_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_private(tmp_path / "keys.json", "\ud800")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOTDIR, "home_not_a_folder"),
        (errno.EEXIST, "home_not_a_folder"),
        (errno.EROFS, "home_read_only"),
        (errno.EACCES, "home_read_only"),
        (errno.EPERM, "home_read_only"),
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EFBIG, "disk_full"),
        (errno.EIO, "home_unusable"),
        (errno.ENAMETOOLONG, "home_unusable"),
    ],
)
def test_every_error_of_the_system_has_one_code(number: int, code: str) -> None:
    error = home_error(Path("place"), OSError(number, os.strerror(number)))
    assert error.code == code
    assert "place" in error.sentence
    assert str(error) == error.sentence


def test_windows_waits_for_a_reader_of_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [PermissionError(errno.EACCES, "in use")] * 3
    pauses: list[float] = []
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if refusals:
            raise refusals.pop()
        return real(self, target)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(time, "sleep", pauses.append)
    write_private(tmp_path / "endpoint.json", "{}")
    assert (tmp_path / "endpoint.json").read_text() == "{}"
    assert pauses == [paths.REPLACE_PAUSE_SECONDS] * 3


def test_windows_gives_up_on_a_file_that_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, "in use")

    pauses: list[float] = []
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(HomeError) as caught:
        write_private(tmp_path / "endpoint.json", "{}")
    assert caught.value.code == "home_read_only"
    assert len(pauses) == paths.REPLACE_TRIES - 1
    assert list(tmp_path.iterdir()) == []


@posix
def test_windows_leaves_modes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = home(tmp_path / "run")
    prepare(here)
    here.root.chmod(0o755)
    monkeypatch.setattr(sys, "platform", "win32")
    assert prepare(here) == []
    assert mode(here.root) == 0o755
