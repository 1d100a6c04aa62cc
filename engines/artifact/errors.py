"""What can be wrong with a model file, each case as one type.

Every type has a stable ``code``, the HTTP ``status`` an endpoint answers with, and a ``sentence`` for a person that
says what happened to which file and what to do about it.

    ArtifactError
    |-- ModelMissing       the file, one part of a split, or any model in a folder is not there
    |-- UnreadableModel    the system does not let it be read
    |-- NotAModel          something else than a GGUF file
    |-- TruncatedModel     its end is missing
    |-- IncompleteModel    a file is missing in the folder of a model
    |   |-- UnfinishedDownload   and it is still being downloaded, or the download was left off
    |-- MalformedModel     its header contradicts itself or the format
    |-- UnsupportedModel   a sound file that no model can be run from here
    |   |-- PickledWeights       its weights can run programs of their own
    |   |-- BringsCode           it cannot run without program code from its folder
    |   |-- LinkLeadsOut         one of its files is a link out of the models folder
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from engines.artifact.mlx_hub import model_name


class ArtifactError(Exception):
    """Root of all failures to read a model file. ``detail`` is what was found, in the middle of the sentence."""

    code: ClassVar[str] = "model_error"
    status: ClassVar[int] = 503
    what: ClassVar[str] = "cannot be used"
    advice: ClassVar[str] = "Choose another model."

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    @property
    def sentence(self) -> str:
        """What a user reads."""
        return f"{model_name(self.path)} {self.what}: {self.detail}. {self.advice}"

    def __str__(self) -> str:
        return self.sentence


class ModelMissing(ArtifactError):
    """There is nothing at the path."""

    code = "model_missing"
    status = 404
    what = "is not there"
    advice = "Put the file back, or download it again."


class UnreadableModel(ArtifactError):
    """The file is there, but the system refuses to open or read it."""

    code = "model_unreadable"
    what = "cannot be read"
    advice = "Check the permissions of the file and the disk it is on."


class NotAModel(ArtifactError):
    """The path leads to something that is no GGUF file."""

    code = "not_gguf"
    what = "is not a GGUF model"
    advice = "Choose a .gguf file; if this should be one, download it again: a web page saved under its name is usual."


class TruncatedModel(ArtifactError):
    """The file ends before its header says so."""

    code = "model_truncated"
    what = "is incomplete"
    advice = "The download was cut short: download it again."


class IncompleteModel(ArtifactError):
    """The folder of a model lacks one of the files that make it."""

    code = "model_incomplete"
    what = "is incomplete"
    advice = "Put the file back, or download the model again."


class UnfinishedDownload(IncompleteModel):
    """The folder lacks a file, and holds parts of a download."""

    code = "download_unfinished"
    what = "is not downloaded yet"
    advice = "Let the download finish, or start it again: it goes on where it stopped."


class MalformedModel(ArtifactError):
    """The header breaks the rules of the format, or contradicts itself."""

    code = "model_malformed"
    what = "is damaged"
    advice = "Download it again, or take another copy of the model."


class UnsupportedModel(ArtifactError):
    """The file is sound and still cannot be run."""

    code = "model_unsupported"
    what = "cannot be run"
    advice = "Choose another file of this model."


class PickledWeights(UnsupportedModel):
    """The weights are pickled: loading them runs whatever program their author put there."""

    code = "model_pickled"
    what = "is not loaded"
    advice = "Take a copy of the model whose weights end in .safetensors."


class BringsCode(UnsupportedModel):
    """The model asks for program code from its own folder, which is never run."""

    code = "model_brings_code"
    what = "is not loaded"
    advice = "Choose a model that the engine knows by itself."


class LinkLeadsOut(UnsupportedModel):
    """A file of the model is a link to somewhere outside of the folder that was searched."""

    code = "model_link_outside"
    what = "is not used"
    advice = "Add the folder that the link leads to, or copy the file itself."
