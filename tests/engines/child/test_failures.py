"""What a dying server prints, and what the user is told: the table."""

from __future__ import annotations

import pytest

from engines import errors
from engines.child.failures import classify


@pytest.mark.parametrize(
    ("tail", "code", "kind"),
    [
        ("srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1", 1, errors.PortTaken),
        ("gguf_init_from_file: failed to open GGUF file '/x.gguf'", 1, errors.ModelFileMissing),
        ("tensor 'x' data is not within the file bounds, model is corrupted", 1, errors.ModelFileTruncated),
        ("gguf_init_from_file_impl: failed to read key-value pairs", 1, errors.ModelFileTruncated),
        ("gguf_init_from_file_impl: invalid magic characters: '<htm'", 1, errors.NotAModelFile),
        ("error loading model architecture: unknown model architecture: 'alien'", 1, errors.ArchitectureUnknown),
        ("error: invalid argument: --cache-reuse", 1, errors.BadArgument),
        ("ggml_aligned_malloc: insufficient memory (attempted to allocate 9 MB)", 1, errors.OutOfMemory),
        ("llama_kv_cache: failed to allocate buffer for kv cache", 1, errors.OutOfMemory),
        ("failed to allocate compute pp buffers", 1, errors.OutOfMemory),
        ("unable to allocate CPU buffer", 1, errors.OutOfMemory),
        ("alloc_tensor_range: failed to allocate CPU buffer of size 99", 1, errors.OutOfMemory),
        ("", -9, errors.KilledWhileLoading),
        ("", -11, errors.OutOfMemory),
        ("something new", 1, errors.ExitedWhileLoading),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory", 1, errors.GpuOutOfMemory),
        ("CUDA error: out of memory", -6, errors.GpuOutOfMemory),
        ("CUDA error: no kernel image is available for execution on the device", -6, errors.GpuTooOld),
        ("ggml was has no device code compatible with CUDA arch 500", -6, errors.GpuTooOld),
        ("CUDA driver version is insufficient for CUDA runtime version", 1, errors.DriverTooOld),
        ("the provided PTX was compiled with an unsupported toolchain", -6, errors.DriverTooOld),
        ("CUDA error: an illegal memory access was encountered", -6, errors.GpuError),
        ("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected", 1, errors.GpuError),
        ("cudaMalloc failed: out of memory\nfailed to allocate buffer for kv cache", 1, errors.GpuOutOfMemory),
        ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", 1, errors.GpuOutOfMemory),
        ("failed to allocate CUDA0 buffer of size 123", 1, errors.GpuOutOfMemory),
    ],
)
def test_each_text_is_one_class(tail: str, code: int, kind: type[errors.LoadError]) -> None:
    error = classify("Tiny", code, f"line before\n{tail}\nline after")
    assert type(error) is kind
    assert error.sentence.startswith("Tiny was not loaded: ")
    assert error.sentence.endswith(".")
    assert tail in error.tail


def test_the_sentence_names_the_architecture() -> None:
    error = classify("Tiny", 1, "unknown model architecture: 'alien'")
    assert "(alien)" in error.sentence


def test_every_load_error_says_what_to_do_under_a_code_and_a_status() -> None:
    kinds = errors.LoadError.__subclasses__()
    assert len(kinds) == 15
    for kind in kinds:
        assert kind.code not in {errors.EngineError.code, errors.LoadError.code}
        assert kind.advice.endswith(".")
        assert 400 <= kind.status <= 599
