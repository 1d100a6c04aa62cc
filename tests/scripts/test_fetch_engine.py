from __future__ import annotations

import http.server
import json
import sys
import threading
import zipfile

import fetch_engine
import pytest
import stamps
from engine_choice import LINUX_WHEEL, Release
from engine_folder import PROGRAM, EngineFolder
from steps import SetupError

WANTED = {"origin": "wheel", "name": "x", "version": "2"}
posix = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in program is a shell script")


def program(folder: EngineFolder, script: str) -> None:
    folder.bin.mkdir(parents=True, exist_ok=True)
    folder.program.write_text(f"#!/bin/sh\n{script}\n")
    folder.program.chmod(0o755)


@pytest.fixture
def served(tmp_path):
    """A folder and the address under which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_args):
            pass

        def do_GET(self):
            if self.path.endswith("cut"):
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(b"half")
            else:
                super().do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("found", "there", "verdict"),
    [
        (WANTED, True, "current"),
        (WANTED, False, "fetch"),
        ({**WANTED, "version": "1"}, True, "fetch"),
        ({"origin": "release", "name": "y"}, True, "fetch"),
        ({"origin": "built", "version": "3"}, True, "keep"),
        ({}, True, "keep"),
        ({}, False, "fetch"),
    ],
)
def test_what_happens_to_the_folder_that_is_there(found, there, verdict):
    assert fetch_engine.verdict(found, there, WANTED) == verdict


def test_the_stamp_of_the_wheel_changes_with_its_lock():
    facts = fetch_engine.expected(LINUX_WHEEL)
    assert facts["version"] == LINUX_WHEEL.version
    assert facts["lock"] == stamps.sha256_of(fetch_engine.ENGINE_LOCK)


@posix
def test_a_current_engine_costs_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_engine, "choose", lambda *_: LINUX_WHEEL)
    folder = EngineFolder(tmp_path / "cpu")
    program(folder, f"touch {tmp_path}/started")
    stamps.write(folder.stamp, fetch_engine.expected(LINUX_WHEEL))
    assert fetch_engine.fetch("cpu", engines=tmp_path) is False
    assert not (tmp_path / "started").exists()


@posix
def test_an_engine_of_ones_own_is_kept(tmp_path, capfd):
    program(EngineFolder(tmp_path / "cpu"), "echo version: mine")
    assert fetch_engine.fetch("cpu", engines=tmp_path) is False
    assert "kept (version: mine)" in capfd.readouterr().out


def test_where_nothing_fits_the_build_script_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_engine, "choose", lambda *_: fetch_engine.SourceBuild("nothing fits"))
    with pytest.raises(SetupError, match=r"nothing fits\. Build one: python3 scripts/build_llama_cpp.py cuda"):
        fetch_engine.fetch("cuda", engines=tmp_path)


@posix
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'error while loading shared libraries: libgomp.so.1' >&2; exit 127", "libgomp.so.1"),
        ("exit 3", "status 3 and says: nothing"),
    ],
)
def test_a_server_that_does_not_run_says_what_it_said(tmp_path, script, said):
    folder = EngineFolder(tmp_path / "cpu")
    program(folder, script)
    with pytest.raises(SetupError, match=said):
        folder.version()


def test_a_failed_fetch_leaves_the_folder_as_it_was(tmp_path):
    folder = EngineFolder(tmp_path / "cpu")
    folder.bin.mkdir(parents=True)
    folder.program.write_text("old")

    def fetch_one_that_does_not_run():
        with folder.staged() as fresh:
            fresh.program.write_text("new")
            raise SetupError("engine", "does not run")

    with pytest.raises(SetupError):
        fetch_one_that_does_not_run()
    assert folder.program.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["cpu"]


def test_a_good_fetch_takes_the_old_ones_place(tmp_path):
    folder = EngineFolder(tmp_path / "cpu")
    folder.bin.mkdir(parents=True)
    (folder.bin / "stale.so").write_text("old")
    with folder.staged() as fresh:
        fresh.program.write_text("new")
    assert [entry.name for entry in folder.bin.iterdir()] == [PROGRAM]
    assert [entry.name for entry in tmp_path.iterdir()] == ["cpu"]


def test_an_archive_is_trusted_once_and_held_to_it(tmp_path, capfd):
    recorded, trusted = tmp_path / "recorded.json", tmp_path / "trusted.json"
    recorded.write_text("{}")
    fetch_engine.check_digest("a.zip", "11", recorded, trusted)
    assert "Record it in scripts/recorded.json: 11" in capfd.readouterr().out
    fetch_engine.check_digest("a.zip", "11", recorded, trusted)
    assert capfd.readouterr().out == ""
    with pytest.raises(SetupError) as refused:
        fetch_engine.check_digest("a.zip", "22", recorded, trusted)
    assert refused.value.code == "digest"


def test_the_repositorys_digest_outweighs_the_one_seen_first(tmp_path):
    recorded, trusted = tmp_path / "recorded.json", tmp_path / "trusted.json"
    recorded.write_text(json.dumps({"a.zip": "11"}))
    stamps.write(trusted, {"a.zip": "22"})
    fetch_engine.check_digest("a.zip", "11", recorded, trusted)
    with pytest.raises(SetupError):
        fetch_engine.check_digest("a.zip", "22", recorded, trusted)


def release_of(folder, address, monkeypatch, recorded):
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr(f"llama-b1/{PROGRAM}", "program")
        archive.writestr("llama-b1/LICENSE", "MIT")
    monkeypatch.setattr("engine_choice.RELEASES", address)
    monkeypatch.setattr(fetch_engine, "RECORDED", recorded)
    (folder / "b1").mkdir()
    (folder / "a.zip").rename(folder / "b1" / "a.zip")
    return Release("b1", ("a.zip",))


def test_a_release_is_fetched_checked_and_unpacked_flat(served, tmp_path, monkeypatch):
    folder, address = served
    recorded = tmp_path / "recorded.json"
    release = release_of(folder, address, monkeypatch, recorded)
    recorded.write_text(json.dumps({"a.zip": stamps.sha256_of(folder / "b1" / "a.zip")}))
    with EngineFolder(tmp_path / "cpu").staged() as fresh:
        fetch_engine.bring_release(release, fresh, tmp_path, tmp_path / "trusted.json")
    assert (tmp_path / "cpu" / "bin" / PROGRAM).read_text() == "program"
    assert (tmp_path / "cpu" / "licenses" / "LICENSE").read_text() == "MIT"
    assert not (tmp_path / "trusted.json").exists()


def test_a_release_with_another_digest_is_refused_and_leaves_nothing(served, tmp_path, monkeypatch):
    folder, address = served
    recorded = tmp_path / "recorded.json"
    release = release_of(folder, address, monkeypatch, recorded)
    recorded.write_text(json.dumps({"a.zip": "0" * 64}))
    with pytest.raises(SetupError) as refused, EngineFolder(tmp_path / "cpu").staged() as fresh:
        fetch_engine.bring_release(release, fresh, tmp_path, tmp_path / "trusted.json")
    assert refused.value.code == "digest"
    assert not (tmp_path / "cpu").exists()


@pytest.mark.parametrize("name", ["missing", "cut"])
def test_a_download_that_fails_leaves_nothing(served, tmp_path, name):
    with pytest.raises(SetupError) as refused:
        fetch_engine.download(f"{served[1]}/{name}", tmp_path / "file")
    assert refused.value.code == "download"
    assert not (tmp_path / "file").exists()
