"""The log: private, bounded, free of keys, quiet when the disk is full."""

from __future__ import annotations

import json
import logging
import os
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import logs
from app.logs import MARK, LogSetup, Redactor, setup
from app.paths import Home, home, prepare

SECRET = "s3cret/with+odd=chars"
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has access lists, not modes")
log = logging.getLogger("app.tests")


@pytest.fixture
def here(tmp_path: Path) -> Home:
    place = home(tmp_path / "run")
    prepare(place)
    return place


@pytest.fixture
def running(here: Home) -> Iterator[LogSetup]:
    found = setup(here, "info")
    yield found
    found.close()


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {MARK}"),
        ("authorization: bearer abcdefgh", f"authorization: bearer {MARK}"),
        ("Basic dXNlcjpwYXNz", f"Basic {MARK}"),
        ("GET /x?api_key=abc&y=1", f"GET /x?api_key={MARK}&y=1"),
        ("LLAMA_API_KEY=abc OTHER=1", f"LLAMA_API_KEY={MARK} OTHER=1"),
        ("x-api-key: abc", f"x-api-key: {MARK}"),
        ('{"api_key": "two words", "n": 1}', f'{{"api_key": {MARK}, "n": 1}}'),
        ("api_key = 'it\\'s' rest", f"api_key = {MARK} rest"),
        ("--api-key abc --port 1", f"--api-key {MARK} --port 1"),
        ("token hf_AbCdEfGhIjKlMnOp.", f"token {MARK}."),
        ("key sk-proj-Ab_12345678 used", f"key {MARK} used"),
    ],
)
def test_what_looks_like_a_secret_is_redacted(text: str, redacted: str) -> None:
    assert Redactor().redact(text) == redacted
    assert Redactor().redact(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "the bearer of good news",
        "api_key is missing: set it",
        "hf_hub_download and hf_transfer",
        "a risk-averse task-list",
        "basic auth",
        "Qwen3-4B-Q4_K_M · 32,768 tokens",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert Redactor().redact(text) == text


def test_a_registered_secret_is_redacted_as_it_is_in_json_and_in_a_url() -> None:
    secret = 'quote" slash\\ plus+ 0123'
    redactor = Redactor()
    redactor.register(secret)
    for spelling in (secret, json.dumps(secret)[1:-1], urllib.parse.quote(secret, safe="")):
        assert redactor.redact(f"a {spelling} b") == f"a {MARK} b"
    redactor.forget(secret)
    assert redactor.redact(secret) == secret


def test_a_secret_inside_a_longer_one_leaves_no_rest() -> None:
    redactor = Redactor()
    for secret in ("0123456789ab", "0123456789abcdef", "zz0123456789abcdef"):
        redactor.register(secret)
    assert redactor.redact("zz0123456789abcdef 0123456789abcdef") == f"{MARK} {MARK}"


def test_a_short_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="at least 12 characters") as caught:
        Redactor().register("hunter2")
    assert "hunter2" not in str(caught.value)


@given(
    st.lists(st.text(st.characters(exclude_characters="[]"), min_size=12, max_size=24), min_size=1, max_size=4),
    st.data(),
)
def test_no_registered_secret_survives(secrets: list[str], data: st.DataObject) -> None:
    redactor = Redactor()
    for secret in secrets:
        redactor.register(secret)
    parts = data.draw(st.lists(st.one_of(st.sampled_from(secrets), st.text(max_size=8)), max_size=6))
    redacted = redactor.redact("".join(parts))
    assert not any(secret in redacted for secret in secrets)


def test_message_arguments_exception_and_stack_are_redacted(here: Home, running: LogSetup) -> None:
    running.redactor.register(SECRET)
    log.info("message %s", SECRET)
    log.info("argument %s and %s", SECRET, {"key": SECRET})
    log.warning("Bearer abcdefgh")
    try:
        raise ValueError(f"exception {SECRET}")
    except ValueError:
        log.exception("caught", stack_info=True)
    text = here.log_file.read_text()
    assert SECRET not in text
    assert "abcdefgh" not in text
    assert f"ValueError: exception {MARK}" in text
    assert "Stack (most recent call last)" in text


def test_text_from_outside_can_not_forge_a_line(here: Home, running: LogSetup) -> None:
    log.info("model %s", "x\n2026-01-01 00:00:00,000 ERROR app: forged\r\x1b[2J\x9b")
    lines = here.log_file.read_text().split("\n")
    assert lines[1:] == ["    2026-01-01 00:00:00,000 ERROR app: forged\\x0d\\x1b[2J\\x9b", ""]


def test_a_lone_surrogate_is_written_all_the_same(
    here: Home, running: LogSetup, capsys: pytest.CaptureFixture[str]
) -> None:
    log.info("file %s", "\udcff")
    assert "file \\udcff" in here.log_file.read_text()
    assert capsys.readouterr().err == ""


@posix
def test_the_log_is_private_even_where_a_loose_one_stood(here: Home) -> None:
    here.log_file.write_text("old\n")
    here.log_file.chmod(0o644)
    old = os.umask(0)
    try:
        running = setup(here, "info")
        log.info("new")
        running.close()
    finally:
        os.umask(old)
    assert here.log_file.stat().st_mode & 0o777 == 0o600
    assert here.log_file.read_text().startswith("old\n")


@posix
def test_the_log_is_bounded_and_its_older_files_are_private(here: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 2000)
    running = setup(here, "info")
    for number in range(200):
        log.info("line %d", number)
    running.close()
    files = sorted(here.logs.iterdir())
    assert [file.name for file in files] == ["plimsoll.log", "plimsoll.log.1", "plimsoll.log.2"]
    assert all(file.stat().st_size <= 2000 for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert "line 199\n" in here.log_file.read_text()


def test_levels_act_at_once_on_ours_and_libraries_speak_from_warning_on(here: Home, running: LogSetup) -> None:
    library = logging.getLogger("somelibrary")
    log.debug("quiet")
    library.info("chatter")
    library.warning("matters")
    running.set_level("debug")
    log.debug("loud")
    running.set_level("error")
    logging.getLogger("engines.x").warning("hushed")
    words = [line.split()[-1] for line in here.log_file.read_text().splitlines()]
    assert words == ["matters", "loud"]


def test_the_console_is_redacted_too(here: Home, capsys: pytest.CaptureFixture[str]) -> None:
    running = setup(here, "info", console=True)
    running.redactor.register(SECRET)
    log.info("key %s", SECRET)
    running.close()
    caught = capsys.readouterr()
    assert f"key {MARK}\n" in caught.err
    assert caught.out == ""


def test_a_redactor_can_be_shared(here: Home) -> None:
    redactor = Redactor()
    running = setup(here, "info", redactor=redactor)
    running.close()
    assert running.redactor is redactor


def test_closing_leaves_logging_as_it_was(here: Home) -> None:
    before = (
        [logging.getLogger(name).level for name in ("", "app", "engines")],
        logging.getLogger().handlers[:],
    )
    running = setup(here, "debug", console=True)
    running.close()
    running.close()
    after = (
        [logging.getLogger(name).level for name in ("", "app", "engines")],
        logging.getLogger().handlers[:],
    )
    assert after == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_one_sentence(here: Home, capsys: pytest.CaptureFixture[str]) -> None:
    here.log_file.symlink_to("/dev/full")
    running = setup(here, "info")
    for _ in range(500):
        log.info("x" * 100)
    running.close()
    assert capsys.readouterr().err == f"The log {here.log_file} is not complete: No space left on device.\n"
    assert Path("/dev/full").stat().st_mode & 0o777 == 0o666


def test_a_missing_folder_is_one_sentence(here: Home, capsys: pytest.CaptureFixture[str]) -> None:
    here.logs.rmdir()
    running = setup(here, "info")
    log.info("one")
    log.info("two")
    running.close()
    assert capsys.readouterr().err == f"The log {here.log_file} is not complete: No such file or directory.\n"


def test_a_record_that_can_not_be_formatted_shows_no_arguments(
    here: Home, running: LogSetup, capsys: pytest.CaptureFixture[str]
) -> None:
    for handler in logging.getLogger().handlers:
        record = logging.LogRecord("app", logging.INFO, "f", 1, "%d", (SECRET,), None)
        if handler.__class__.__module__ == "app.logs":
            handler.handle(record)
    assert capsys.readouterr().err == f"The log {here.log_file} is not complete: TypeError.\n"


@pytest.mark.parametrize("gone", ["closed", "none"])
def test_a_log_without_a_stderr_to_complain_on_stays_quiet(
    here: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    here.logs.rmdir()
    with (here.root / "stderr").open("w") as stream:
        pass
    monkeypatch.setattr(sys, "stderr", stream if gone == "closed" else None)
    running = setup(here, "info", console=True)
    log.info("x")
    running.close()
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


def test_what_children_print_has_a_private_file_of_its_own(here: Home) -> None:
    setup = logs.setup(here, "info")
    setup.redactor.register("a-secret-of-ours")
    logging.getLogger(logs.CHILD).debug("tiny: a-secret-of-ours %d", 1)
    setup.close()
    assert here.server_log_file.read_text().endswith(f"tiny: {logs.MARK} 1\n")
    assert here.server_log_file.stat().st_mode & 0o777 == 0o600
    assert not here.log_file.exists()
