"""The copy that the server makes of the weights: by type of the tensors, and at most, by type of the file."""

from __future__ import annotations

import pytest

from engines.artifact.ggml import TENSOR_TYPES
from engines.artifact.gguf_header import TensorInfo
from engines.artifact.matrices import Matrices, matrices
from engines.memory.processor import AMX, AVX2, AVX512, DOTPROD
from engines.memory.repack import at_most, copied_bytes, expected
from tests.fixtures.facts import facts

NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}
X86 = (AVX2, AVX512)
WITH_AMX = (AMX, AVX2, AVX512)


def tensor(name: str, kind: str, *shape: int) -> TensorInfo:
    elements = 1
    for side in shape:
        elements *= side
    block = TENSOR_TYPES[NUMBERS[kind]]
    return TensorInfo(name, shape, NUMBERS[kind], 0, elements, elements // block.block * block.block_bytes)


def test_what_is_multiplied_is_counted_by_type() -> None:
    found = matrices(
        [
            tensor("token_embd.weight", "Q8_0", 256, 1024),
            tensor("output.weight", "Q6_K", 256, 1024),
            tensor("blk.0.attn_norm.weight", "F32", 256),
            tensor("blk.0.attn_q.weight", "Q4_K", 256, 256),
            tensor("blk.0.attn_k.weight", "Q4_K", 256, 256),
            tensor("blk.0.odd.weight", "Q4_K", 256, 31),
            tensor("blk.0.ffn_up_exps.weight", "Q4_K", 256, 512, 8),
        ]
    )
    q4_k = 2 * 256 * 144
    assert found == Matrices({"Q6_K": 1024 * 210, "Q4_K": q4_k}, {"Q4_K": 512 * 8 * 144})


def test_a_token_embedding_is_copied_where_it_is_the_output_too() -> None:
    assert matrices([tensor("token_embd.weight", "Q8_0", 32, 64)]).plain == {"Q8_0": 64 * 34}


@pytest.mark.parametrize(
    ("kind", "features", "copied"),
    [
        ("Q4_K", X86, 1440),
        ("Q4_K", (), 0),
        ("Q6_K", X86, 0),
        ("Q6_K", (DOTPROD,), 1440),
        ("Q8_0", X86, 0),
        ("Q8_0", (DOTPROD,), 1440),
        ("Q8_0", WITH_AMX, 1609),
        ("Q4_K", WITH_AMX, 1480),
        ("F16", WITH_AMX, 1440),
        ("F16", X86, 0),
        ("IQ4_NL", WITH_AMX, 1440),
        ("Q2_K", (AVX2,), 0),
        ("Q2_K", X86, 1440),
        ("Q5_0", WITH_AMX, 0),
        ("F32", WITH_AMX, 0),
    ],
)
def test_each_processor_copies_its_types(kind: str, features: tuple[str, ...], copied: int) -> None:
    assert copied_bytes(Matrices({kind: 1440}, {}), features) == copied


def test_experts_are_left_alone_by_amx() -> None:
    assert copied_bytes(Matrices({}, {"Q8_0": 1440, "Q4_K": 144}), WITH_AMX) == 144


@pytest.mark.parametrize(
    ("quantisation", "features", "copied"),
    [
        ("Q4_K_M", X86, 900),
        ("Q4_K_M", WITH_AMX, 925),
        ("Q8_0", WITH_AMX, 1005),
        ("Q8_0", X86, 0),
        ("Q5_K_S", X86, 0),
        ("Q5_K_S", (DOTPROD,), 900),
        ("Q3_K_L", X86, 900),
        ("MXFP4_MOE", X86, 900),
        ("IQ3_M", WITH_AMX, 0),
        ("BF16", WITH_AMX, 0),
        ("F32", (), 900),
        (None, X86, 900),
    ],
)
def test_at_most_one_copy_of_the_weights(quantisation: str | None, features: tuple[str, ...], copied: int) -> None:
    model = facts(weights_bytes=1000, token_embedding_bytes=100, quantisation=quantisation)
    assert at_most(model, features) == copied


def test_the_embedding_of_a_tied_model_may_be_copied() -> None:
    assert at_most(facts(weights_bytes=1000, token_embedding_bytes=100, tied_output=True), X86) == 1000


def test_the_tensors_are_counted_where_they_and_the_processor_are_known() -> None:
    model = facts(weights_bytes=1000, quantisation="Q4_K_M", matrices=Matrices({"Q4_K": 144, "Q6_K": 210}, {}))
    assert expected(model, X86) == 144
    assert expected(model, ()) == at_most(model, ()) == 1000
    assert expected(facts(weights_bytes=1000), X86) == at_most(facts(weights_bytes=1000), X86)
