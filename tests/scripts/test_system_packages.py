from __future__ import annotations

import dataclasses
import sys

import build_llama_cpp
import environment
import pytest
import system_packages
from steps import SetupError
from system_packages import (
    DESKTOP,
    DESKTOP_TESTS,
    ENGINE,
    Host,
    Need,
    command_for,
    ensure,
    needs_for,
    present,
    sentence,
)

DEBIAN = Host("linux", debian=True, dnf=False, root=True)
USER = dataclasses.replace(DEBIAN, root=False)
FEDORA = Host("linux", debian=False, dnf=True, root=False)
OTHER = Host("linux", debian=False, dnf=False, root=False)
MISSING = (Need("library", "libxcb-cursor.so.0", "libxcb-cursor0"), Need("program", "Xvfb", "xvfb"))


@pytest.mark.parametrize(
    ("level", "system", "display", "needs"),
    [
        ("run", "linux", False, ENGINE),
        ("run", "linux", True, ENGINE + DESKTOP),
        ("test", "linux", True, ENGINE + DESKTOP + DESKTOP_TESTS),
        ("test", "linux", False, ENGINE + DESKTOP + DESKTOP_TESTS),
        ("run", "darwin", True, ()),
        ("test", "win32", True, ()),
    ],
)
def test_each_level_needs_its_own(level, system, display, needs):
    assert needs_for(level, system, display) == needs


@pytest.mark.parametrize(
    ("host", "command"),
    [
        (DEBIAN, "apt-get install -y --no-install-recommends libxcb-cursor0 xvfb"),
        (USER, "sudo apt-get install -y --no-install-recommends libxcb-cursor0 xvfb"),
        (FEDORA, "sudo dnf install -y 'libxcb-cursor.so.0()(64bit)' /usr/bin/Xvfb"),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_brings_it(host, command):
    assert (
        sentence(host, MISSING, "the app") == f"Missing for the app: libxcb-cursor.so.0, Xvfb. Install with: {command}"
    )


def test_without_a_known_package_tool_debians_names_are_given():
    assert command_for(OTHER, MISSING) is None
    assert sentence(OTHER, MISSING, "the app").endswith("(Debian's names: libxcb-cursor0 xvfb).")


def test_nothing_missing_asks_nobody():
    assert ensure(MISSING, "the app", host=None, has=lambda _: True, installer=pytest.fail) is False


@pytest.mark.parametrize("host", [USER, FEDORA, OTHER])
def test_without_the_right_to_install_it_only_names(host):
    with pytest.raises(SetupError) as refused:
        ensure(MISSING, "the app", host, has=lambda _: False, installer=pytest.fail)
    assert refused.value.code == "system-packages"
    assert "libxcb-cursor0" in str(refused.value) or "libxcb-cursor.so.0" in str(refused.value)


def test_root_on_debian_installs_exactly_what_is_missing():
    there, asked = {"Xvfb"}, []

    def install(_host, packages, _reason):
        asked.extend(packages)
        there.add("libxcb-cursor.so.0")

    assert ensure(MISSING, "the app", DEBIAN, has=lambda need: need.name in there, installer=install) is True
    assert asked == ["libxcb-cursor0"]


def test_what_is_still_missing_after_an_install_is_an_error():
    with pytest.raises(SetupError, match="still not found"):
        ensure(MISSING, "the app", DEBIAN, has=lambda _: False, installer=lambda *_: None)


def test_bring_names_the_command_where_it_may_not_install():
    with pytest.raises(SetupError, match="sudo apt-get install -y --no-install-recommends xvfb"):
        system_packages.bring(USER, ["xvfb"], "No Xvfb")


@pytest.mark.skipif(sys.platform != "linux", reason="sonames of Linux")
def test_this_machine_is_looked_at():
    assert present(Need("library", "libc.so.6", "libc6"))
    assert not present(Need("library", "libnothing-of-the-kind.so.0", ""))
    assert present(Need("program", "sh", "dash"))
    assert not present(Need("program", "no-such-program-here", ""))
    assert system_packages.read_host().system == "linux"


def test_a_python_without_ensurepip_names_debians_package(monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(environment.sys, "base_prefix", "/usr")
    monkeypatch.setattr(system_packages, "read_host", lambda: USER)
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    with pytest.raises(SetupError, match=f"sudo apt-get install -y --no-install-recommends {package}"):
        environment.ensure_venv_module()


def test_another_incomplete_python_is_told_so(monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(environment.sys, "base_prefix", "/opt/python")
    with pytest.raises(SetupError, match="no venv and ensurepip"):
        environment.ensure_venv_module()


@pytest.mark.parametrize(
    ("flavour", "system", "programs"),
    [
        ("cpu", "linux", ["cmake", "ninja", "c++"]),
        ("cuda", "linux", ["cmake", "ninja", "c++", "nvcc"]),
        ("cpu", "darwin", ["cmake", "ninja", "c++"]),
        ("cpu", "win32", ["cmake", "ninja", "cl"]),
    ],
)
def test_a_build_needs_its_tools(flavour, system, programs):
    assert [need.name for need in build_llama_cpp.tools_for(flavour, system)] == programs
