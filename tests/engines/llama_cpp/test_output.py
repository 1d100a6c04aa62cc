"""The lines that a llama-server prints about its memory, as b10434 and b11434 print them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llama_cpp.output import Buffer, ServerOutput, read_output

MIB = 1 << 20
GEMMA = """\
0.01.388.659 I load_tensors: offloaded 0/19 layers to GPU
0.01.388.676 I load_tensors:          AMX model buffer size =   213.91 MiB
0.01.388.689 I load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
0.01.701.929 I llama_context: constructing llama_context
0.01.704.224 I llama_context: flash_attn            = auto
0.01.704.353 I llama_context:        CPU  output buffer size =     1.00 MiB
0.01.704.740 I llama_kv_cache:        CPU KV buffer size =    96.00 MiB
0.01.772.806 I llama_kv_cache: size =   96.00 MiB ( 32768 cells,   3 layers,  1/1 seqs), K (f16):   48.00 MiB
0.01.773.070 I llama_kv_cache:        CPU KV buffer size =    15.00 MiB
0.01.781.999 I resolve_fused_ops: Flash Attention enabled
0.01.784.445 I sched_reserve:        CPU compute buffer size =    50.77 MiB
"""
PROBED = """\
load_tensors: loading model tensors, this can take a while... (mmap = true)
load_tensors: offloaded 3/5 layers to GPU
load_tensors:        CUDA0 model buffer size =     9.00 MiB
llama_context: constructing llama_context
llama_kv_cache:      CUDA0 KV buffer size =    99.00 MiB
llama_context: Flash Attention was auto, set to enabled
sched_reserve: Flash Attention enabled
load_tensors: loading model tensors, this can take a while... (mmap = true)
load_tensors: offloaded 5/5 layers to GPU
load_tensors:        CUDA0 model buffer size =     8.00 MiB
llama_context: constructing llama_context
llama_kv_cache:      CUDA0 KV buffer size =     4.00 MiB
sched_reserve: Flash Attention not supported, set to disabled
"""


def test_a_sliding_model_with_a_copy_of_its_weights() -> None:
    output = read_output(GEMMA)
    assert output.kv == 111 * MIB
    assert output.repacked == round(213.91 * MIB)
    assert output.compute == round(50.77 * MIB)
    assert output.total("output") == MIB
    assert output.flash_attention is True
    assert output.offloaded == (0, 19)
    assert Buffer("CPU_Mapped", "model", round(235.16 * MIB)) in output.buffers


def test_of_two_passes_the_last_counts() -> None:
    output = read_output(PROBED)
    assert output.kv == 4 * MIB
    assert output.total("model") == 8 * MIB
    assert output.repacked == 0
    assert output.flash_attention is False
    assert output.offloaded == (5, 5)


@pytest.mark.parametrize(
    ("line", "flash"),
    [
        ("llama_context: flash_attn            = disabled", False),
        ("llama_context: flash_attn            = enabled", True),
        ("llama_context: flash_attn            = auto", None),
        ("llama_context: Flash Attention was auto, set to enabled", True),
        ("llama_context: Flash Attention was auto, set to disabled", False),
        ("llama_kv_cache: size =    2.00 MiB", None),
    ],
)
def test_flash_attention_that_was_fixed(line: str, flash: bool | None) -> None:
    assert read_output(line).flash_attention is flash


def test_silence_is_unknown_and_not_zero() -> None:
    output = read_output("")
    assert output == ServerOutput()
    assert (output.kv, output.compute, output.repacked) == (None, None, None)


@given(st.text() | st.lists(st.sampled_from(GEMMA.splitlines()) | st.text()).map("\n".join))
def test_any_output_is_read(text: str) -> None:
    output = read_output(text)
    assert all(buffer.size >= 0 for buffer in output.buffers)
