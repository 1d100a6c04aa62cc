"""A llama-server whose reason for ending did not come through, and memory that a thread or a library lacks."""

from __future__ import annotations

import pytest

from engines import errors
from engines.child.failures import classify

STATE = 'cmd_child_to_router:state:{"state":"loading"}'
INFO = "0.00.006.332 I srv         start: binding port with default address family"
ERROR = "0.00.006.400 E srv    load_model: failed to load model, '/x.gguf'"


@pytest.mark.parametrize(
    ("tail", "code", "kind"),
    [
        ("", 1, errors.ReasonLost),
        (STATE, 1, errors.ReasonLost),
        (INFO, 1, errors.ReasonLost),
        (f"{STATE}\n{INFO}\n\n{INFO}", 1, errors.ReasonLost),
        # it gave a reason, known or not
        (f"{INFO}\n{ERROR}", 1, errors.ExitedWhileLoading),
        (f"{INFO}\nSegmentation fault in a shell's words", 1, errors.ExitedWhileLoading),
        (f"{INFO}\nunknown model architecture: 'alien'", 1, errors.ArchitectureUnknown),
        (f"{INFO}\ncouldn't bind HTTP server socket", 1, errors.PortTaken),
        # how it ended says enough
        (INFO, 3, errors.ExitedWhileLoading),
        (INFO, -6, errors.ExitedWhileLoading),
        (INFO, -9, errors.KilledWhileLoading),
        (INFO, -11, errors.OutOfMemory),
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


def test_a_server_whose_reason_was_lost_is_started_again_like_one_whose_port_was_taken() -> None:
    assert issubclass(errors.ReasonLost, errors.PortTaken)
    assert errors.ReasonLost("Tiny").code == "exited"
