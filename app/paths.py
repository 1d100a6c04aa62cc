"""Where Plimsoll keeps what it writes, and how it stays private.

On Linux and macOS the home is 0700 and the secrets in it 0600. On Windows modes say nothing: the profile's
access list keeps other users out, so every step about modes and owners here does nothing there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs

PRIVATE_FOLDER = 0o700
"""Mode of every folder of the home: its owner only."""
PRIVATE_FILE = 0o600
"""Mode of every file with a secret or an address in it: its owner only."""
OTHERS = 0o077
"""The mode bits of everybody but the owner."""
PROBE_BYTES = 4096
"""Bytes written to learn whether the home takes any: one block, so that a full disk shows."""
REPLACE_TRIES = 10
"""Tries to replace a file on Windows, which refuses while a reader holds it open. Ours, not measured."""
REPLACE_PAUSE_SECONDS = 0.02
"""Pause between two such tries; 0.2 s in all."""

_NOT_A_FOLDER = frozenset({errno.ENOTDIR, errno.EEXIST})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class HomeError(Exception):
    """The home can not be used.

    ``code`` is one of ``home_not_a_folder``, ``home_read_only``, ``home_not_ours``, ``disk_full``,
    ``home_unusable``; ``sentence`` says what to do.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Home:
    """The folder that holds all that one installation writes; every path below it has its name here."""

    root: Path

    @property
    def settings(self) -> Path:
        """What the user chose (TOML)."""
        return self.root / "settings.toml"

    @property
    def endpoint_file(self) -> Path:
        """The address in use while the endpoint runs (JSON)."""
        return self.root / "endpoint.json"

    @property
    def ledger(self) -> Path:
        """The live children, for the clean-up after a crash (JSON)."""
        return self.root / "workers.json"

    @property
    def lock(self) -> Path:
        """Held by the one running instance."""
        return self.root / "instance.lock"

    @property
    def keys(self) -> Path:
        """The readable local key where the system has no keyring (JSON)."""
        return self.root / "keys.json"

    @property
    def models(self) -> Path:
        """Folder of the models that we downloaded."""
        return self.root / "models"

    @property
    def logs(self) -> Path:
        """Folder of our log and the children's."""
        return self.root / "logs"

    @property
    def log_file(self) -> Path:
        """Our own log; older ones stand beside it with a number."""
        return self.logs / "plimsoll.log"

    @property
    def server_log_file(self) -> Path:
        """What the children print; older ones stand beside it with a number."""
        return self.logs / "llama-server.log"

    @property
    def child_config(self) -> Path:
        """The configuration folder that children are given: empty, so that nothing stray changes them."""
        return self.root / "child-config"


def home(directory: Path | None) -> Home:
    """The home in ``directory``, or in the user's data folder where none is given. Touches nothing."""
    if directory is None:
        return Home(platformdirs.user_data_path("Plimsoll", appauthor=False))
    return Home(directory.expanduser().absolute())


def prepare(home: Home) -> list[str]:
    """Create the home's folders and make it private.

    Returns a sentence for everything that was not as it should be. Raises HomeError when the home is a file,
    can not be written, belongs to another user or is on a full disk.
    """
    said: list[str] = []
    for folder in (home.root, home.models, home.logs, home.child_config):
        try:
            folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        except OSError as error:
            raise home_error(folder, error) from error
        if folder == home.root:
            _refuse_another_owner(folder)
        said += _make_private(folder, PRIVATE_FOLDER)
    for file in (home.settings, home.endpoint_file, home.ledger, home.keys):
        if file.exists():
            said += _make_private(file, PRIVATE_FILE)
    _probe(home.root)
    strays = sorted(entry.name for entry in home.child_config.iterdir())
    if strays:
        said.append(
            f"{home.child_config} should be empty, children read their configuration from it; "
            f"it holds {', '.join(strays)}: move that away."
        )
    return said


def write_private(path: Path, text: str) -> None:
    """Write ``text`` (as UTF-8, byte for byte) so that nobody sees ``path`` half-written, others not at all.

    Raises HomeError; the old file is then still whole, and nothing is left beside it.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)  # born as 0600
    except OSError as error:
        raise home_error(path, error) from error
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        _replace(fresh, path)
        _sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        if isinstance(error, OSError):
            raise home_error(path, error) from error
        raise


def home_error(path: Path, error: OSError) -> HomeError:
    """What an error of the file system about ``path`` means for the user."""
    elsewhere = "choose another folder with --home."
    if error.errno in _NOT_A_FOLDER:
        code = "home_not_a_folder"
        sentence = f"{path} can not be a folder: a file stands in its way. Move it, or {elsewhere}"
    elif error.errno in _READ_ONLY:
        code = "home_read_only"
        sentence = f"{path} can not be written ({error.strerror}). Make it writable for you, or {elsewhere}"
    elif error.errno in _FULL:
        code = "disk_full"
        sentence = f"There is no space left for {path}. Free some space, then try again."
    else:
        code = "home_unusable"
        sentence = f"{path} can not be used ({error.strerror or error}). Repair that, or {elsewhere}"
    return HomeError(code, sentence)


def _refuse_another_owner(folder: Path) -> None:
    if sys.platform == "win32":
        return
    owner, we = folder.stat().st_uid, os.geteuid()
    if owner != we:
        raise HomeError(
            "home_not_ours",
            f"{folder} belongs to another user (id {owner}, we are {we}). "
            "Start Plimsoll as that user, or choose another folder with --home.",
        )


def _make_private(path: Path, mode: int) -> list[str]:
    if sys.platform == "win32":
        return []
    found = stat.S_IMODE(path.stat().st_mode)
    if not found & OTHERS:
        return []
    try:
        path.chmod(mode)
    except PermissionError as error:
        raise HomeError(
            "home_not_ours",
            f"Other users can read {path} (mode {found:04o}), and it is not ours to change. "
            "Give it to your user, or delete it.",
        ) from error
    except OSError as error:
        raise home_error(path, error) from error
    return [f"Other users could use {path} (mode {found:04o}); it is {mode:04o} now."]


def _probe(folder: Path) -> None:
    """Write a little and take it away: only this finds a full or read-only disk, for root too."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise home_error(folder, error) from error


def _replace(fresh: Path, path: Path) -> None:
    if sys.platform == "win32":
        for _ in range(REPLACE_TRIES - 1):
            try:
                fresh.replace(path)
            except PermissionError:  # a reader holds the old file open for a moment
                time.sleep(REPLACE_PAUSE_SECONDS)
            else:
                return
    fresh.replace(path)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut; Windows can not open a folder for this."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
