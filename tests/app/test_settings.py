"""Settings: every key checked, every refusal a sentence that helps, comments kept."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from app.paths import HomeError
from app.settings import Acts, Environment, Settings, SettingsError, change, describe, load, parse

KEY = "0123456789abcdef"


def refusal(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert caught.value.code == "settings_invalid"
    assert KEY not in caught.value.sentence
    return caught.value.sentence


def test_a_missing_file_means_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path / "settings.toml") == Settings() == parse("")


def test_every_key_is_read() -> None:
    settings = parse(
        f"""
        engine = "cpu"
        llama_server = "/opt/llama-server"
        gpu_working_set_gib = 10.5
        host = "0.0.0.0"
        port = 8080
        api_key = "{KEY}"
        allowed_hosts = ["Studio.local", "192.168.1.7", "::1"]
        allowed_origins = ["http://localhost:3000", "app://Notes.example"]
        models_folders = ["/mnt/models", "~/models"]
        default_model = "Qwen3-4B"
        window = 8192
        size_to_free_memory = false
        threads = 3
        max_models = 2
        idle_seconds = 0
        pinned = ["a", "b"]
        evict_pinned = true
        max_wait_seconds = 0.5
        load_seconds = 30
        log_level = "debug"
        """
    )
    assert settings.model_dump() == {
        "engine": "cpu",
        "llama_server": Path("/opt/llama-server"),
        "gpu_working_set_gib": 10.5,
        "host": "0.0.0.0",
        "port": 8080,
        "api_key": SecretStr(KEY),
        "allowed_hosts": ("studio.local", "192.168.1.7", "::1"),
        "allowed_origins": ("http://localhost:3000", "app://notes.example"),
        "models_folders": (Path("/mnt/models"), Path("~/models").expanduser()),
        "default_model": "Qwen3-4B",
        "window": 8192,
        "size_to_free_memory": False,
        "threads": 3,
        "max_models": 2,
        "idle_seconds": 0,
        "pinned": ("a", "b"),
        "evict_pinned": True,
        "max_wait_seconds": 0.5,
        "load_seconds": 30,
        "log_level": "debug",
    }
    assert KEY not in repr(settings)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1


@pytest.mark.parametrize(
    ("line", "where", "allowed"),
    [
        ('engine = "gpu"', 'engine = "gpu"', '"vulkan"'),
        ('llama_server = "bin/llama-server"', "llama_server", "an absolute path"),
        ("llama_server = 1", "llama_server = 1: it should be a path", "an absolute path"),
        ('host = "http://127.0.0.1"', 'host = "http://127.0.0.1"', '"127.0.0.1"'),
        ('host = ""', 'host = ""', '"127.0.0.1"'),
        ("port = -1", "port = -1", "0 to 65535"),
        ("port = 65536", "port = 65536", "0 to 65535"),
        ('port = "8080"', 'port = "8080"', "0 to 65535"),
        ("port = true", "port = true", "0 to 65535"),
        ('api_key = "short"', "api_key: it is too short", "at least 16"),
        (f'api_key = "{KEY} {KEY}"', "api_key: ", "without spaces"),
        (f'api_key = ["{KEY}"]', "api_key: ", "at least 16"),
        ('allowed_hosts = ["ok", "http://x"]', 'allowed_hosts.1 = "http://x"', "host names"),
        ('allowed_hosts = "ok"', "allowed_hosts = ", "a list"),
        ('allowed_origins = ["*"]', "allowed_origins.0", "origins"),
        ('allowed_origins = ["http://x/path"]', "allowed_origins.0", "without a path"),
        ('models_folders = ["models"]', 'models_folders.0 = "models"', "absolute"),
        ('default_model = ""', "default_model = ", "the name of a model"),
        ("window = 255", "window = 255", "256 to 10,000,000 tokens"),
        ("window = 10_000_001", "window = 10000001", "256 to 10,000,000 tokens"),
        ("window = 4096.0", "window = 4096.0", "256 to 10,000,000 tokens"),
        ("[window]\nx = 1", "window = ", "256 to 10,000,000 tokens"),
        ("threads = 0", "threads = 0", "1 or more"),
        ("max_models = 0", "max_models = 0", "1 or more"),
        ("idle_seconds = -1", "idle_seconds = -1", "0 or more"),
        ("idle_seconds = inf", "idle_seconds", "0 or more"),
        ("idle_seconds = nan", "idle_seconds", "0 or more"),
        ("pinned = [1]", "pinned.0 = 1", "a list of model ids"),
        ("evict_pinned = 1", "evict_pinned = 1", "true or false"),
        ("max_wait_seconds = 0", "max_wait_seconds = 0", "more than 0"),
        ("load_seconds = 0", "load_seconds = 0", "more than 0"),
        ('log_level = "loud"', "log_level = ", '"debug"'),
    ],
)
def test_a_refusal_names_the_key_and_what_is_allowed(line: str, where: str, allowed: str) -> None:
    sentence = refusal(line)
    assert where in sentence
    before, _, after = sentence.partition("Allowed: ")
    assert where in before
    assert allowed in after


def test_every_wrong_key_is_named_at_once() -> None:
    sentence = refusal('port = -1\nmax_models = 0\nwindwo = 1\n"a.b" = 2')
    assert all(name in sentence for name in ("port", "max_models", "windwo", "a.b"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("windwo = 4096", "windwo is no setting. Close ones: window."),
        ("models_folder = []", "Close ones: models_folders"),
        ("zzz = 1", "zzz is no setting. Keys: engine, llama_server,"),
        ("[server]\nport = 1", "server is no setting."),
        (f'apikey = "{KEY}"', "Close ones: api_key"),
    ],
)
def test_an_unknown_key_is_told_close_ones(line: str, said: str) -> None:
    assert said in refusal(line)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("port = 1\nmax_models = \n", "line 2, column 14"),
        ("port = 1\nport = 2\n", "line 2, column 9"),
        ('port = 1\nhost = """x', "line 2, column 12"),
        ("port", "line 1, column 5"),
    ],
)
def test_a_syntax_error_names_line_and_column(text: str, place: str) -> None:
    sentence = refusal(text)
    assert "not valid TOML" in sentence
    assert place in sentence


@pytest.mark.parametrize("text", ["port = " + "9" * 5000, "port = 0x" + "f" * 5000, "port = " + "[" * 5000])
def test_a_monstrous_value_is_refused_like_any_other(text: str) -> None:
    assert len(refusal(text)) < 500


@pytest.mark.parametrize(
    ("host", "reachable"),
    [
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("localhost", False),
        ("LOCALHOST", False),
        ("0.0.0.0", True),
        ("::", True),
        ("192.168.1.7", True),
        ("studio.local", True),
    ],
)
def test_the_lan_needs_a_key(host: str, reachable: bool) -> None:
    line = f'host = "{host}"'
    if reachable:
        sentence = refusal(line)
        assert "LAN without a key" in sentence
        assert f'"{host}"' in sentence
        assert 'Set api_key = "..." or host = "127.0.0.1"' in sentence
    assert parse(f'{line}\napi_key = "{KEY}"').loopback is not reachable


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_windows_file_is_read(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "settings.toml").write_bytes(mark + b"port = 1\r\nmax_models = 2\r\n")
    assert load(tmp_path / "settings.toml") == Settings(port=1, max_models=2)


def test_a_file_in_another_encoding_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_bytes(b"port = 1\n# caf\xe9\n")
    with pytest.raises(SettingsError, match=r"not UTF-8 \(at line 2, column 6\)"):
        load(tmp_path / "settings.toml")


def test_a_file_that_can_not_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").mkdir()
    with pytest.raises(SettingsError, match=r"settings\.toml can not be read \(Is a directory\)"):
        load(tmp_path / "settings.toml")


TEXT = """\
# my machine
port = 27182  # as always

# the big one
window = 8192
pinned = [
    "a",  # first
]
"""


def test_a_change_keeps_comments_and_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(TEXT)
    assert change(path, "window", 4096).window == 4096
    assert path.read_text() == TEXT.replace("8192", "4096")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("port", 0, 0),
        ("api_key", SecretStr(KEY), SecretStr(KEY)),
        ("models_folders", [Path("/mnt/a"), Path("/mnt/b")], (Path("/mnt/a"), Path("/mnt/b"))),
        ("models_folders", (), ()),
        ("llama_server", Path("/opt/llama-server"), Path("/opt/llama-server")),
        ("evict_pinned", True, True),
        ("idle_seconds", 12.5, 12.5),
        ("default_model", 'a "quoted" näme', 'a "quoted" näme'),
        ("window", None, None),
        ("threads", None, None),
    ],
)
@pytest.mark.parametrize("before", [None, "", TEXT, TEXT.rstrip("\n"), TEXT.replace("\n", "\r\n"), "# only this"])
def test_a_change_reads_back(tmp_path: Path, before: str | None, key: str, value: object, read: object) -> None:
    path = tmp_path / "settings.toml"
    if before is not None:
        path.write_bytes(before.encode())
    old = load(path)
    new = change(path, key, value)
    assert load(path) == new
    assert getattr(new, key) == read
    assert new.model_dump(exclude={key}) == old.model_dump(exclude={key})
    if before:
        assert before.splitlines()[:1] == path.read_text().splitlines()[:1]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("window", 1, "256 to 10,000,000"),
        ("windwo", 4096, "Close ones: window"),
        ("host", "0.0.0.0", "LAN without a key"),
        ("port", object(), "port can not be changed"),
        ("default_model", "\ud800", "default_model"),
    ],
)
def test_a_refused_change_leaves_the_file_alone(tmp_path: Path, key: str, value: object, said: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(TEXT)
    with pytest.raises(SettingsError, match=said):
        change(path, key, value)
    assert path.read_text() == TEXT
    assert list(tmp_path.iterdir()) == [path]


def test_a_change_can_mend_what_was_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('host = "0.0.0.0"\n')
    with pytest.raises(SettingsError):
        load(path)
    assert change(path, "host", "127.0.0.1") == Settings()


def test_a_change_of_a_broken_file_says_where_it_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("port = \n")
    with pytest.raises(SettingsError, match="line 1, column 8"):
        change(path, "port", 1)
    assert path.read_text() == "port = \n"


def test_a_change_in_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(HomeError):
        change(tmp_path / "gone" / "settings.toml", "port", 1)


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_linked_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target, path = tmp_path / "dotfiles" / "settings.toml", tmp_path / "settings.toml"
    target.write_text("port = 1\n")
    path.symlink_to(target)
    change(path, "port", 2)
    assert path.is_symlink()
    assert target.read_text() == "port = 2\n"


LINES = st.lists(
    st.one_of(
        st.sampled_from(TEXT.splitlines()),
        st.builds(
            "{} = {}".format,
            st.sampled_from([*Settings.model_fields, "x", "[window]", '"a.b"']),
            st.sampled_from(["1", '"x"', "[]", "{}", "-1.5", "nan", "1979-05-27", "[[1]]", "true", "", '"""']),
        ),
        st.text(max_size=20),
    ),
    max_size=6,
).map("\n".join)


@given(LINES)
def test_any_text_gives_settings_or_one_kind_of_error(text: str) -> None:
    try:
        settings = parse(text)
    except SettingsError:
        return
    assert settings.model_dump(exclude_unset=True).keys() == tomllib.loads(text).keys()


def test_every_key_is_described() -> None:
    found = describe()
    assert [row.key for row in found] == list(Settings.model_fields)
    defaults = Settings()
    for row in found:
        assert row.acts in get_args(Acts), row.key
        assert row.description.endswith("."), row.key
        assert row.type, row.key
        if row.default == "unset":
            assert getattr(defaults, row.key) is None
            assert "unset" in row.type, row.key
        else:
            assert getattr(parse(f"{row.key} = {row.default}"), row.key) == getattr(defaults, row.key)


def test_the_environment_is_read() -> None:
    variables = {
        "PLIMSOLL_CTX": " 8192 ",
        "PLIMSOLL_FORCE_CPU": "1",
        "PLIMSOLL_FORCE_MEMORY_PRESSURE": "vram-critical",
        "PLIMSOLL_VRAM_OVERRIDE_GB": "7.5",
        "OTHER": "x",
    }
    assert Environment.read(variables) == Environment(8192, True, "vram-critical", 7.5)


def test_an_empty_variable_is_unset() -> None:
    names = ("CTX", "FORCE_CPU", "FORCE_MEMORY_PRESSURE", "VRAM_OVERRIDE_GB")
    assert Environment.read({f"PLIMSOLL_{name}": "" for name in names}) == Environment() == Environment.read({})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CTX", "255"),
        ("CTX", "10000001"),
        ("CTX", "8k"),
        ("CTX", "-1"),
        ("CTX", "9" * 5000),
        ("CTX", "٨١٩٢"),
        ("FORCE_CPU", "yes"),
        ("FORCE_CPU", "2"),
        ("FORCE_MEMORY_PRESSURE", "severe"),
        ("VRAM_OVERRIDE_GB", "inf"),
        ("VRAM_OVERRIDE_GB", "-1"),
        ("VRAM_OVERRIDE_GB", "8 GB"),
    ],
)
def test_a_malformed_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"PLIMSOLL_{name} is malformed. Allowed: "):
        Environment.read({f"PLIMSOLL_{name}": text})


@given(st.sampled_from(["CTX", "FORCE_CPU", "FORCE_MEMORY_PRESSURE", "VRAM_OVERRIDE_GB"]), st.text(max_size=12))
def test_any_variable_is_read_or_named(name: str, text: str) -> None:
    try:
        Environment.read({f"PLIMSOLL_{name}": text})
    except SettingsError as error:
        assert f"PLIMSOLL_{name}" in error.sentence


def test_the_environments_window_wins() -> None:
    settings = Settings(window=8192, max_models=2)
    assert Environment().over(settings) is settings
    assert Environment(ctx=4096).over(settings) == Settings(window=4096, max_models=2)


def test_force_cpu_is_off_at_zero() -> None:
    assert Environment.read({"PLIMSOLL_FORCE_CPU": "0"}).force_cpu is False
