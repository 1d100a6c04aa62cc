"""What can go wrong with a model server, each failure as one type.

``EngineError`` is the root. Every type has a ``code`` (stable, for programs), a ``status`` (the HTTP status that an
endpoint answers with) and a sentence for a person that says what happened and what to do. ``tail`` holds the last
lines that the server printed, with the key of the spawn taken out.

    EngineError
    |-- EngineUnavailable     no engine or no server program on this machine
    |   |-- ServerMissing
    |-- LoadError             the model did not load
    |   |-- ModelFileMissing, NotAModelFile, ModelFileTruncated, ArchitectureUnknown
    |   |-- OutOfMemory, PortTaken (ReasonLost), GpuOutOfMemory, GpuTooOld, DriverTooOld, GpuError
    |   |-- BadArgument, KilledWhileLoading, ExitedWhileLoading, LoadTimedOut, KeyRefused
    |-- ChildLost             the server ended while it served
"""

from __future__ import annotations

from typing import ClassVar


class EngineError(Exception):
    """Root of all failures of an engine. ``sentence`` is what a user reads."""

    code: ClassVar[str] = "engine_error"
    status: ClassVar[int] = 503
    crash: ClassVar[bool] = True
    """It counts against the model: after a few it is not loaded by itself any more. False where nothing was loaded
    and trying again costs nothing, because something is missing or wrong that only a person can put right."""

    def __init__(self, sentence: str, *, tail: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.tail = tail


class EngineUnavailable(EngineError):
    """Models cannot be run here as things stand."""

    code = "engine_unavailable"
    crash = False


class ServerMissing(EngineUnavailable):
    """There is no llama-server program on this machine."""

    code = "server_missing"


class LoadError(EngineError):
    """A model did not load. ``crashed``: trying again by itself would likely fail the same way."""

    code = "load_failed"
    advice: ClassVar[str] = "Open the log for what the server printed."
    what: ClassVar[str] = "the server could not load it"

    def __init__(self, model: str, *, detail: str = "", tail: str = "") -> None:
        what = f"{self.what} ({detail})" if detail else self.what
        super().__init__(f"{model} was not loaded: {what}. {self.advice}", tail=tail)
        self.model = model
        self.detail = detail


class ModelFileMissing(LoadError):
    """The file is gone."""

    code = "model_missing"
    crash = False
    what = "its file cannot be opened"
    advice = "Put the file back or remove the model, then rescan the models folder."


class NotAModelFile(LoadError):
    """The file is something else."""

    code = "not_gguf"
    crash = False
    what = "its file is not a GGUF model"
    advice = "Download the model again; a web page saved under its name is the usual cause."


class ModelFileTruncated(LoadError):
    """Part of the file is missing."""

    code = "model_truncated"
    crash = False
    what = "its file ends too early"
    advice = "The download was cut short: download the model again."


class ArchitectureUnknown(LoadError):
    """The server program is too old for the model."""

    code = "architecture_unsupported"
    crash = False
    what = "this llama-server does not know the architecture"
    advice = "Use a newer llama-server (setting llama_server) or another model."


class OutOfMemory(LoadError):
    """The machine's memory does not hold the model with its window."""

    code = "out_of_memory"
    what = "there is not enough memory"
    advice = "Close other programs, choose a smaller model, or set a smaller window."


class PortTaken(LoadError):
    """Another program took the port between choosing and binding."""

    code = "port_in_use"
    what = "another program took the port that was chosen for it"
    advice = "Try again."


class ReasonLost(PortTaken):
    """It ended before its reason came through, which may well have been the port. Another try tells."""

    code = "exited"
    what = "the server ended while loading and its reason did not come through"
    advice = "Try again; the log holds what the server printed."


class GpuOutOfMemory(LoadError):
    """The card does not hold it."""

    code = "CUDA_OUT_OF_MEMORY"
    what = "the graphics card has not enough memory free"
    advice = 'Close programs that use the card, choose a smaller model, or set engine = "cpu".'


class GpuTooOld(LoadError):
    """The server has no code for the card."""

    code = "CUDA_COMPUTE_CAPABILITY_TOO_LOW"
    what = "the graphics card is too old for this llama-server"
    advice = 'Set engine = "cpu".'


class DriverTooOld(LoadError):
    """The driver cannot run the server's CUDA code."""

    code = "CUDA_DRIVER_TOO_OLD"
    what = "the NVIDIA driver is too old for this llama-server"
    advice = 'Update the driver, or set engine = "cpu".'


class GpuError(LoadError):
    """Any other CUDA failure."""

    code = "CUDA_ERROR"
    what = "the graphics card reported an error"
    advice = 'Try again; if it comes back, update the driver or set engine = "cpu".'


class BadArgument(LoadError):
    """The server program does not take a flag of ours."""

    code = "server_too_old"
    what = "this llama-server does not understand how it was started"
    advice = "Use another build of llama-server (setting llama_server)."


class KilledWhileLoading(LoadError):
    """The operating system or somebody killed it."""

    code = "killed"
    what = "the server was killed while loading"
    advice = "Usually the system ran out of memory: close other programs or choose a smaller model."


class ExitedWhileLoading(LoadError):
    """It ended and said nothing we know."""

    code = "exited"
    what = "the server ended while loading"


class LoadTimedOut(LoadError):
    """It did not become ready in time."""

    code = "load_timeout"
    status = 504
    what = "the server did not become ready in time"
    advice = "Try again when the machine is less busy, or raise load_seconds in the settings."


class KeyRefused(LoadError):
    """What answers on the port is not our child."""

    code = "port_in_use"
    what = "another server answers on its port"
    advice = "Try again."


class ChildLost(EngineError):
    """A server ended while it served; ``exit_code`` as the system gave it (negative: a signal)."""

    code = "worker_crashed"
    status = 502

    def __init__(
        self, model: str, exit_code: int | None, *, tail: str = "", cause: type[LoadError] | None = None
    ) -> None:
        how = "ended" if exit_code is None else _how(exit_code)
        why = "" if cause is None else f" ({cause.code}): {cause.advice}"
        ended = f"The server of {model} {how} while it worked{why or '.'}"
        super().__init__(f"{ended} Ask again: it will be loaded anew.", tail=tail)
        self.model = model
        self.exit_code = exit_code
        self.cause = cause
        """The class that its last words are of, where they name one."""


def _how(exit_code: int) -> str:
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
