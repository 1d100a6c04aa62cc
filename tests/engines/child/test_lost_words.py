"""A llama-server that ends with its words lost, and memory that is missing for a thread or a library."""

from __future__ import annotations

import pytest

from engines import errors
from engines.child.failures import AT_PORT, classify

STATE = 'cmd_child_to_router:state:{"state":"loading"}'
LOST = f"0.00.006.161 I srv init: using 5 threads\n0.00.006.332 I srv         {AT_PORT} with default address family"


@pytest.mark.parametrize(
    ("tail", "code", "kind"),
    [
        (LOST, 1, errors.EndedAtPort),
        (f"{STATE}\n{LOST}", 1, errors.EndedAtPort),
        (f"{LOST}\n{STATE}", 1, errors.EndedAtPort),
        # it said more, or how it ended says enough
        (f"{LOST}\n0.00.006.400 I srv load_model: loading", 1, errors.ExitedWhileLoading),
        (f"{LOST}\nunknown model architecture: 'alien'", 1, errors.ArchitectureUnknown),
        (f"{LOST}\ncouldn't bind HTTP server socket", 1, errors.PortTaken),
        (LOST, -9, errors.KilledWhileLoading),
        (LOST, -11, errors.OutOfMemory),
        (LOST, -6, errors.ExitedWhileLoading),
        (STATE, 1, errors.ExitedWhileLoading),
        ("", 1, errors.ExitedWhileLoading),
        # an address-space limit, as seen
        ("terminate called after throwing\n  what():  Resource temporarily unavailable", -6, errors.OutOfMemory),
        ("terminate called after throwing an instance of 'std::bad_alloc'", -6, errors.OutOfMemory),
        ("libggml-vulkan.so.0: failed to map segment from shared object", 127, errors.OutOfMemory),
    ],
)
def test_the_class(tail: str, code: int, kind: type[errors.LoadError]) -> None:
    error = classify("Tiny", code, tail)
    assert type(error) is kind
    assert error.sentence.startswith("Tiny was not loaded: ")


def test_a_server_that_ended_at_its_port_is_started_again_like_one_whose_port_was_taken() -> None:
    assert issubclass(errors.EndedAtPort, errors.PortTaken)
    assert errors.EndedAtPort("Tiny").code == "exited"
