"""What the user may choose: one TOML file, every key checked, every refusal a sentence.

The model is the documentation: each key has its default, what it allows, when a change acts and what it does,
and ``describe`` hands that to the docs and to ``doctor``.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

import tomlkit
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from tomlkit.exceptions import TOMLKitError

from app.paths import write_private

API_KEY_CHARACTERS = 16
"""Shortest key, in characters: 16 random ones can not be guessed through the endpoint. Ours."""
WINDOW_TOKENS = (256, 10_000_000)
"""Smallest and largest pinned window: llama.cpp pads to 256 tokens; no model is trained for 10 M."""
FIRST_PORT, LAST_PORT = 27182, 27199
"""The endpoint's ports: the first free one is taken when none is set."""
HIGHEST_PORT = 65535
"""The highest TCP port."""
IDLE_SECONDS = 300.0
"""Time after which an unused model is unloaded."""
WAIT_SECONDS = 600.0
"""Longest wait of one turn for its model."""
LOAD_SECONDS = 600.0
"""Longest load of one model: large weights from a slow disk take minutes."""
CLOSE_NAMES = 3
"""How many similar keys an error about an unknown one names."""
SHOWN_CHARACTERS = 60
"""How much of a refused value or key an error repeats."""
LAN_WITHOUT_A_KEY = "lan_without_a_key"
"""Type of the validation error, the one that is about two keys."""

_PROBLEMS = {
    "literal_error": "no such choice",
    "tuple_type": "it should be a list",
    "path_type": "it should be a path",
    "string_too_short": "it is empty",
}
"""Our words for pydantic's, where its own speak of Python."""

ForcedPressure = Literal["warning", "critical", "vram-warning", "vram-critical"]
Acts = Literal["at once", "at the next load", "at the next start"]


class SettingsError(Exception):
    """A setting or an environment variable can not be used; ``sentence`` names it and what is allowed."""

    code = "settings_invalid"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


def _absolute(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_absolute():
        raise PydanticCustomError("relative_path", "it is relative, and to nothing that stays put")
    return path


def _host_name(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", name):
            raise PydanticCustomError("host_name", "it is no host name and no IP address") from None
    return name.lower()


def _origin(origin: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s?#*]+", origin):
        raise PydanticCustomError("origin", "it is no origin")
    return origin.lower()


def _key_shape(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value()) < API_KEY_CHARACTERS:
        raise PydanticCustomError("key_too_short", "it is too short")
    if not re.fullmatch(r"[!-~]*", key.get_secret_value()):
        raise PydanticCustomError("key_characters", "it holds characters that no header carries")
    return key


HostName = Annotated[str, AfterValidator(_host_name)]
Origin = Annotated[str, AfterValidator(_origin)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Key = Annotated[SecretStr, AfterValidator(_key_shape)]
Name = Annotated[str, Field(min_length=1)]


def _key(default: Any, acts: Acts, allowed: str, description: str, **limits: Any) -> Any:
    return Field(
        default=default,
        description=description,
        json_schema_extra={"acts": acts, "allowed": allowed},
        **limits,
    )


class Settings(BaseModel):
    """Every key of ``settings.toml``. Sizes are tokens, times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    engine: Literal["auto", "cpu", "cuda", "mlx", "vulkan"] = _key(
        "auto",
        "at the next start",
        '"auto", "cpu", "cuda", "mlx" or "vulkan"',
        "What runs the models; auto takes the best one that works here.",
    )
    llama_server: AbsolutePath | None = _key(
        None,
        "at the next start",
        "an absolute path to a file, or unset",
        "The llama-server to start instead of the bundled one.",
    )
    gpu_working_set_gib: float | None = _key(
        None,
        "at the next start",
        "more than 0 GiB, or unset: Metal says it",
        "Graphics memory that MLX models may count on.",
        gt=0,
        strict=True,
    )
    host: HostName = _key(
        "127.0.0.1",
        "at the next start",
        'an address of this machine: "127.0.0.1", or "0.0.0.0" with a key',
        "The address the endpoint listens on; any but loopback needs api_key.",
    )
    port: int = _key(
        0,
        "at the next start",
        f"0 to {HIGHEST_PORT}",
        f"The endpoint's port; 0 takes the first free one of {FIRST_PORT} to {LAST_PORT}.",
        ge=0,
        le=HIGHEST_PORT,
        strict=True,
    )
    api_key: Key | None = _key(
        None,
        "at once",
        f"at least {API_KEY_CHARACTERS} printable ASCII characters without spaces, or unset",
        "The key that clients must send; unset asks for none on loopback.",
    )
    allowed_hosts: tuple[HostName, ...] = _key(
        (),
        "at once",
        'a list of host names without scheme and port, like "studio.local"',
        "Names besides loopback by which clients may call this machine.",
    )
    allowed_origins: tuple[Origin, ...] = _key(
        (),
        "at once",
        'a list of origins without a path, like "http://localhost:3000"',
        "Web pages that may call the endpoint from a browser.",
    )
    models_folders: tuple[AbsolutePath, ...] = _key(
        (),
        "at once",
        "a list of absolute paths to folders or model files",
        "Where models are looked for, besides the home's own folder.",
    )
    default_model: Name | None = _key(
        None,
        "at once",
        "the name of a model, or unset",
        "The model of a request that names none while none is loaded.",
    )
    window: int | None = _key(
        None,
        "at the next load",
        f"{WINDOW_TOKENS[0]:,} to {WINDOW_TOKENS[1]:,} tokens, or unset",
        "The context window to load models with; unset sizes it to the memory.",
        ge=WINDOW_TOKENS[0],
        le=WINDOW_TOKENS[1],
        strict=True,
    )
    size_to_free_memory: bool = _key(
        True,
        "at the next load",
        "true or false",
        "Give a model a smaller window when too little memory is free at its load.",
        strict=True,
    )
    threads: int | None = _key(
        None,
        "at the next load",
        "1 or more, or unset",
        "Threads a model computes with; unset takes the physical cores, one left free above 4.",
        ge=1,
        strict=True,
    )
    max_models: int = _key(1, "at once", "1 or more", "Large models that stay loaded together.", ge=1, strict=True)
    idle_seconds: float = _key(
        IDLE_SECONDS,
        "at once",
        "0 or more seconds",
        "Time after which an unused model is unloaded; 0 never does.",
        ge=0,
        strict=True,
    )
    pinned: tuple[Name, ...] = _key(
        (),
        "at once",
        "a list of model ids",
        "Models that are neither unloaded when idle nor given up for another.",
    )
    evict_pinned: bool = _key(
        False,
        "at once",
        "true or false",
        "Give up a pinned model when nothing else makes room.",
        strict=True,
    )
    max_wait_seconds: float = _key(
        WAIT_SECONDS,
        "at once",
        "more than 0 seconds",
        "Longest time that a request waits for its model.",
        gt=0,
        strict=True,
    )
    load_seconds: float = _key(
        LOAD_SECONDS,
        "at the next start",
        "more than 0 seconds",
        "Longest time that a model may take to load.",
        gt=0,
        strict=True,
    )
    log_level: Literal["debug", "info", "warning", "error"] = _key(
        "info", "at once", '"debug", "info", "warning" or "error"', "How much the log says."
    )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the endpoint."""
        return self.host == "localhost" or (_is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

    @model_validator(mode="after")
    def _key_on_the_lan(self) -> Self:
        if not self.loopback and self.api_key is None:
            raise PydanticCustomError(
                LAN_WITHOUT_A_KEY,
                "LAN without a key: host {host} lets other machines in, and nothing keeps strangers out. "
                'Set api_key = "..." or host = "127.0.0.1".',
                {"host": json.dumps(self.host)},
            )
        return self


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """One key of the settings, for people: ``type`` says what is allowed, ``default`` is as in the file."""

    key: str
    type: str
    default: str
    acts: Acts
    description: str


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables that overrule settings; the last two only ever in tests.

    ``ctx`` is tokens, ``vram_override_gb`` is GiB. None is unset; an empty variable is unset.
    """

    ctx: int | None = None
    force_cpu: bool = False
    force_memory_pressure: ForcedPressure | None = None
    vram_override_gb: float | None = None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment:
        """Parse the PLIMSOLL_ variables. Raises SettingsError naming the malformed one."""
        return cls(
            ctx=_ctx(variables),
            force_cpu=_force_cpu(variables),
            force_memory_pressure=_force_memory_pressure(variables),
            vram_override_gb=_vram_override_gb(variables),
        )

    def over(self, settings: Settings) -> Settings:
        """The settings with ``ctx`` as their window, where it is set."""
        return settings if self.ctx is None else settings.model_copy(update={"window": self.ctx})


def load(path: Path) -> Settings:
    """Read the settings; a missing file means the defaults. Raises SettingsError."""
    text = _read(path)
    return Settings() if text is None else parse(text, path.name)


def parse(text: str, name: str = "settings.toml") -> Settings:
    """The settings in a TOML text; ``name`` stands in the sentences. Raises SettingsError."""
    try:
        return Settings.model_validate(_toml(text, name))
    except ValidationError as error:
        sentences = " ".join(_sentence(found) for found in error.errors(include_url=False))
        raise SettingsError(f"{name}: {sentences}") from None  # the cause would show the values, keys included


def change(path: Path, key: str, value: object) -> Settings:
    """Set one key in the file (None takes it out) and leave everything else, comments included, as it is.

    Returns the settings that hold now. Raises SettingsError, the file untouched, when they would be invalid,
    and HomeError when it can not be written. Blocking.
    """
    path = path.resolve()  # a linked file stays a link
    text = _read(path) or ""
    _toml(text, path.name)
    if key not in Settings.model_fields:
        raise SettingsError(_unknown(key))
    try:
        document = tomlkit.parse(text)
        if value is None:
            document.pop(key, None)
        else:
            document[key] = _plain(value)
        fresh = document.as_string()
    except (TOMLKitError, ValueError, TypeError) as error:
        raise SettingsError(f"{key} can not be changed in {path.name} ({error}). Edit the file itself.") from error
    settings = parse(fresh, path.name)
    write_private(path, fresh)
    return settings


def describe() -> list[KeyDescription]:
    """Every key in the order of the model."""
    found = []
    for key, field in Settings.model_fields.items():
        extra: Any = field.json_schema_extra
        default = "unset" if field.default is None else json.dumps(field.default)
        found.append(KeyDescription(key, extra["allowed"], default, extra["acts"], field.description or ""))
    return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} can not be read ({error.strerror}). Make it a file that you can read.") from error
    try:
        return raw.decode("utf-8-sig")  # Windows editors put a mark in front
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        sentence = f"{path.name} is not UTF-8 (at line {line}, column {column}). Save it as UTF-8."
        raise SettingsError(sentence) from error


def _toml(text: str, name: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        raise SettingsError(f"{name} is not valid TOML: {_with_place(str(error), text)}.") from error
    except RecursionError:
        raise SettingsError(f"{name} is not valid TOML: it is nested too deeply.") from None


def _with_place(message: str, text: str) -> str:
    """Say the last line and column where the parser only says that the document ended."""
    lines = text.split("\n")
    return message.replace("at end of document", f"at line {len(lines)}, column {len(lines[-1]) + 1}")


def _sentence(error: ErrorDetails) -> str:
    if error["type"] == LAN_WITHOUT_A_KEY:
        return error["msg"]
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return _unknown(key)
    where = ".".join(str(part) for part in error["loc"])
    extra: Any = Settings.model_fields[key].json_schema_extra
    shown = "" if key == "api_key" else f" = {_shown(error['input'])}"
    problem = _PROBLEMS.get(error["type"], error["msg"]).replace("Input should", "it should")
    return f"{where}{shown}: {problem}. Allowed: {extra['allowed']}."


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):  # a number of thousands of digits, a deep table
        return "…"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key[:SHOWN_CHARACTERS], Settings.model_fields, n=CLOSE_NAMES)
    hint = f"Close ones: {', '.join(close)}." if close else f"Keys: {', '.join(Settings.model_fields)}."
    return f"{key[:SHOWN_CHARACTERS]} is no setting. {hint}"


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _variable(variables: Mapping[str, str], name: str) -> str | None:
    return variables.get(name, "").strip() or None


def _malformed(name: str, allowed: str) -> SettingsError:
    return SettingsError(f"The environment variable {name} is malformed. Allowed: {allowed}, or unset.")


def _ctx(variables: Mapping[str, str]) -> int | None:
    text = _variable(variables, "PLIMSOLL_CTX")
    if text is None:
        return None
    least, most = WINDOW_TOKENS
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise _malformed("PLIMSOLL_CTX", f"{least:,} to {most:,} tokens")
    return int(text)


def _force_cpu(variables: Mapping[str, str]) -> bool:
    text = _variable(variables, "PLIMSOLL_FORCE_CPU")
    if text not in (None, "0", "1"):
        raise _malformed("PLIMSOLL_FORCE_CPU", "1 or 0")
    return text == "1"


def _force_memory_pressure(variables: Mapping[str, str]) -> ForcedPressure | None:
    text = _variable(variables, "PLIMSOLL_FORCE_MEMORY_PRESSURE")
    tiers = get_args(ForcedPressure)
    if text is not None and text not in tiers:
        raise _malformed("PLIMSOLL_FORCE_MEMORY_PRESSURE", ", ".join(tiers))
    return cast("ForcedPressure | None", text)


def _vram_override_gb(variables: Mapping[str, str]) -> float | None:
    text = _variable(variables, "PLIMSOLL_VRAM_OVERRIDE_GB")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text):
        raise _malformed("PLIMSOLL_VRAM_OVERRIDE_GB", "a number of GiB like 12 or 7.5")
    return float(text)
