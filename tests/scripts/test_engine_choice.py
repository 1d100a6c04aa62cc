from __future__ import annotations

import pytest
from engine_choice import LINUX_WHEEL, Machine, Release, SourceBuild, choose, parse_glibc, read_machine


@pytest.mark.parametrize(
    ("machine", "flavour", "archives"),
    [
        (Machine("darwin", "arm64"), "cpu", ["llama-b10434-bin-macos-arm64.tar.gz"]),
        (Machine("darwin", "x86_64"), "cpu", ["llama-b10434-bin-macos-x64.tar.gz"]),
        (Machine("windows", "amd64"), "cpu", ["llama-b10434-bin-win-cpu-x64.zip"]),
        (Machine("windows", "arm64"), "cpu", ["llama-b10434-bin-win-cpu-arm64.zip"]),
        (
            Machine("windows", "amd64"),
            "cuda",
            ["llama-b10434-bin-win-cuda-12.4-x64.zip", "cudart-llama-bin-win-cuda-12.4-x64.zip"],
        ),
        (Machine("linux", "aarch64", (2, 39)), "cpu", ["llama-b10434-bin-ubuntu-arm64.tar.gz"]),
    ],
)
def test_upstreams_archive_fits_the_platform(machine, flavour, archives):
    choice = choose(machine, flavour)
    assert isinstance(choice, Release)
    assert list(choice.archives) == archives
    assert choice.url(archives[0]).endswith(f"/releases/download/b10434/{archives[0]}")


@pytest.mark.parametrize("glibc", [(2, 35), (2, 36), (2, 41), (3, 0)])
def test_linux_on_x86_64_gets_the_wheel(glibc):
    assert choose(Machine("linux", "x86_64", glibc)) is LINUX_WHEEL


@pytest.mark.parametrize(
    ("machine", "flavour", "why"),
    [
        (Machine("linux", "x86_64", (2, 31)), "cpu", "needs glibc 2.35; this system has 2.31"),
        (Machine("linux", "x86_64", None), "cpu", "needs glibc 2.35; this system has none"),
        (Machine("linux", "aarch64", (2, 36)), "cpu", "needs glibc 2.39; this system has 2.36"),
        (Machine("linux", "riscv64", (2, 41)), "cpu", "no prebuilt cpu llama-server for linux on riscv64"),
        (Machine("linux", "x86_64", (2, 41)), "cuda", "no prebuilt cuda llama-server for linux"),
        (Machine("darwin", "arm64"), "cuda", "no prebuilt cuda llama-server for darwin"),
        (Machine("freebsd", "amd64"), "cpu", "no prebuilt cpu llama-server for freebsd"),
    ],
)
def test_elsewhere_it_has_to_be_built_and_says_why(machine, flavour, why):
    choice = choose(machine, flavour)
    assert isinstance(choice, SourceBuild)
    assert why in choice.reason


@pytest.mark.parametrize(
    ("text", "version"),
    [("glibc 2.36", (2, 36)), ("glibc 2.39.1", (2, 39)), ("musl 1.2", None), ("glibc", None), ("", None), (None, None)],
)
def test_glibc_names_itself(text, version):
    assert parse_glibc(text) == version


def test_this_machine_is_read():
    machine = read_machine()
    assert machine.system in {"linux", "darwin", "windows"}
    assert machine.cpu == machine.cpu.lower() != ""
