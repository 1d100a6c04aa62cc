from __future__ import annotations

from pathlib import Path, PurePosixPath

import build_llama_cpp
import pytest
from build_llama_cpp import configure_command, place_source
from steps import SetupError


@pytest.mark.parametrize(("flavour", "cuda"), [("cpu", False), ("cuda", True)])
def test_the_flavour_decides_about_cuda_and_options_come_last(flavour, cuda):
    command = configure_command(Path("s"), Path("b"), flavour, ["-DGGML_NATIVE=OFF"])
    assert command[:5] == ["cmake", "-S", "s", "-B", "b"]
    assert ("-DGGML_CUDA=ON" in command) is cuda
    assert command[-1] == "-DGGML_NATIVE=OFF"
    assert "-DBUILD_SHARED_LIBS=OFF" in command


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ("pack-1/llama.cpp/CMakeLists.txt", "CMakeLists.txt"),
        ("pack-1/llama.cpp/ggml/src/a.c", "ggml/src/a.c"),
        ("pack-1/llama.cpp", None),
        ("pack-1/setup.py", None),
        ("llama.cpp/setup.py", None),
        ("pack-1/other/llama.cpp/a.c", None),
    ],
)
def test_only_upstreams_source_is_unpacked(entry, place):
    assert place_source(PurePosixPath(entry)) == (PurePosixPath(place) if place else None)


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_the_tools_are_named_with_what_brings_them(monkeypatch, system):
    monkeypatch.setattr(build_llama_cpp.sys, "platform", system)
    monkeypatch.setattr(build_llama_cpp.system_packages, "present", lambda need: need.name == "cmake")
    with pytest.raises(SetupError) as refused:
        build_llama_cpp.ensure_tools("cpu")
    assert refused.value.code == "system-packages"
    assert "Missing for the build: ninja, " in str(refused.value)
    assert build_llama_cpp.ELSEWHERE[system] in str(refused.value)
