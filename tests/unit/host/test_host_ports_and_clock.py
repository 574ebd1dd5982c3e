from __future__ import annotations

import socket
import sys

import pytest

from stoker.core.device import TriState
from stoker.host.network import is_clock_synchronised, is_port_free


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_on_which_somebody_listens_is_not_free(address: str) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, 0))
        server.listen()
        answer = is_port_free(server.getsockname()[1])
    assert (answer.verdict, answer.why) == (TriState.NO, "another program uses it")


@pytest.mark.timing
def test_a_port_that_was_just_given_up_is_free() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            taken, _ = server.accept()
            taken.close()
    assert is_port_free(port).is_yes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says")
@pytest.mark.parametrize(("kept", "verdict"), [(True, TriState.YES), (False, TriState.NO)])
def test_the_kernel_says_whether_the_clock_is_kept(
    monkeypatch: pytest.MonkeyPatch, kept: bool, verdict: TriState
) -> None:
    from stoker.host import linux

    assert isinstance(linux.is_clock_kept(), bool)
    monkeypatch.setattr(linux, "is_clock_kept", lambda: kept)
    assert is_clock_synchronised().verdict is verdict


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says")
def test_a_kernel_that_refuses_to_say_makes_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.host import linux

    def refuse() -> bool:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(linux, "is_clock_kept", refuse)
    answer = is_clock_synchronised()
    assert (answer.verdict, answer.why) == (TriState.UNKNOWN, "Operation not permitted")


def test_elsewhere_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.host.network.sys.platform", "darwin")
    assert is_clock_synchronised().verdict is TriState.UNKNOWN
