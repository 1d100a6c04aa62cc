"""What a model multiplies with, by type: the part of its weights that a server may copy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engines.artifact.ggml import TENSOR_TYPES
from engines.artifact.gguf_header import TensorInfo

ROWS = 32
"""AMX takes matrices whose rows are a multiple of this, the other kernels of 4 or 8."""
OUTPUT = "output.weight"
LOOKED_UP = frozenset(
    {"token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"}
)
"""Tables that a model looks rows up in: nothing multiplies them, so they are not copied."""
EXPERTS = "_exps."


@dataclass(frozen=True, slots=True)
class Matrices:
    """Bytes of what a model multiplies with, by the name of the type."""

    plain: Mapping[str, int]
    experts: Mapping[str, int]
    """Stacks of experts, which AMX leaves alone."""


def matrices(tensors: Iterable[TensorInfo]) -> Matrices:
    """The matrices among the tensors of a header (of all parts). A token embedding without an output is one."""
    listed = list(tensors)
    tied = all(tensor.name != OUTPUT for tensor in listed)
    plain: dict[str, int] = {}
    experts: dict[str, int] = {}
    for tensor in listed:
        kind = TENSOR_TYPES.get(tensor.type)
        if kind is None or tensor.size is None or len(tensor.shape) < 2 or tensor.shape[1] % ROWS:
            continue
        if tensor.name in LOOKED_UP and not (tied and tensor.name == "token_embd.weight"):
            continue
        if len(tensor.shape) == 2:
            plain[kind.name] = plain.get(kind.name, 0) + tensor.size
        elif EXPERTS in tensor.name:
            experts[kind.name] = experts.get(kind.name, 0) + tensor.size
    return Matrices(plain, experts)
