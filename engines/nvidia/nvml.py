"""What NVML says: cards, their memory, who holds it. Thin, over the library ``pynvml``.

Each question opens NVML and closes it again (it counts its users, so several may ask at once). All of it blocks: ask
from a thread. No failure leaves this module: a value that cannot be read is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Generic, TypeVar

from engines.nvidia.gpu import Gpu

T = TypeVar("T")

NO_LIBRARY = "the Python package nvidia-ml-py is not installed"


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A value that was read, or None and the reason why it was not."""

    value: T | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class VideoMemory:
    """VRAM of one card in bytes. What the driver reserves for itself is neither free nor used by anyone."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Cards:
    """The machine's cards, without anything that changes from one second to the next."""

    count: int
    """As NVML counts them: more than ``gpus`` where one does not say who it is."""
    gpus: tuple[Gpu, ...] = ()
    driver_cuda: tuple[int, int] | None = None
    """The newest CUDA version that the driver runs."""
    reason: str = ""
    """Why something is missing."""


def load_library() -> ModuleType | None:
    """``pynvml``; None where it is not installed (it is no dependency on macOS)."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml  # type: ignore[no-any-return]


class Nvml:
    """Asks NVML. ``library`` has the functions of ``pynvml``; None: there is none."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def of_this_system(cls) -> Nvml:
        """With the library that is installed here."""
        return cls(load_library())

    def cards(self) -> Cards:
        """All cards. No driver, no library, no card: a count of 0 and the reason."""
        asked = self._ask(self._cards)
        return asked.value or Cards(0, reason=asked.reason)

    def memory(self, uuid: str) -> Reading[VideoMemory]:
        """Memory of the card now."""
        return self._ask(lambda nvml: self._memory(nvml, _handle(nvml, uuid)))

    def process_bytes(self, uuid: str, pid: int) -> Reading[int]:
        """Bytes of the card's memory that one process holds.

        None under Windows' own driver model, where NVML does not know, and for a process that it does not list.
        """
        return self._ask(lambda nvml: _held(nvml.nvmlDeviceGetComputeRunningProcesses(_handle(nvml, uuid)), pid))

    def _cards(self, nvml: Any) -> Cards:
        count = int(nvml.nvmlDeviceGetCount())
        read = [self._try(partial(self._card, nvml, index)) for index in range(count)]
        driver = self._try(lambda: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion()))
        reasons = dict.fromkeys(filter(None, (*(each.reason for each in read), driver.reason)))
        gpus = tuple(each.value for each in read if each.value is not None)
        return Cards(count, gpus, driver.value, "; ".join(reasons))

    def _card(self, nvml: Any, index: int) -> Gpu:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = self._try(lambda: self._memory(nvml, handle))
        capability = self._try(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        name = self._try(lambda: _text(nvml.nvmlDeviceGetName(handle)))
        return Gpu(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=name.value or f"NVIDIA GPU {index}",
            total_bytes=memory.value.total if memory.value is not None else None,
            compute_capability=(
                (int(capability.value[0]), int(capability.value[1])) if capability.value is not None else None
            ),
        )

    def _memory(self, nvml: Any, handle: Any) -> VideoMemory:
        """Version 2 where binding and driver have it: only there is the driver's own share not called used."""
        version = getattr(nvml, "nvmlMemory_v2", None)
        if version is not None:
            found = self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=version))
            if found.value is not None:
                return VideoMemory(int(found.value.total), int(found.value.free))
        plain = nvml.nvmlDeviceGetMemoryInfo(handle)
        return VideoMemory(int(plain.total), int(plain.free))

    def _ask(self, question: Callable[[Any], T | None]) -> Reading[T]:
        if self._library is None:
            return Reading(None, NO_LIBRARY)

        def asked() -> T | None:
            with _opened(self._library) as nvml:
                return question(nvml)

        return self._try(asked)

    def _try(self, read: Callable[[], T | None]) -> Reading[T]:
        try:
            value = read()
        except self._library.NVMLError as error:
            return Reading(None, f"NVML: {error}")
        return Reading(value) if value is not None else Reading(None, "NVML does not tell")


@contextmanager
def _opened(nvml: Any) -> Iterator[Any]:
    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _handle(nvml: Any, uuid: str) -> Any:
    return nvml.nvmlDeviceGetHandleByUUID(uuid)


def _held(processes: Any, pid: int) -> int | None:
    sizes = [process.usedGpuMemory for process in processes if process.pid == pid]
    known = [int(size) for size in sizes if size is not None]
    return sum(known) if known else None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value  # older bindings


def _cuda_version(number: int) -> tuple[int, int]:
    """12080 is 12.8."""
    return number // 1000, number % 1000 // 10
