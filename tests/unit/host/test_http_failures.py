"""What breaks has one name each: outside exceptions are translated by kind and by how far an exchange had come."""

from __future__ import annotations

import errno
import http.client
import os
import ssl

import pytest

from stoker.host.http.failures import Aborted, Ended, Malformed, Reason, Step, translated, translating
from stoker.model.errors import BadAnswer, NetworkFailed, StokerError

HOST = "example.org:8443"


def _errno(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] secret detail")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "step", "reason"),
    [
        (TimeoutError("timed out"), Step.CONNECT, Reason.CONNECT_TIMEOUT),
        (TimeoutError("timed out"), Step.HEAD, Reason.READ_TIMEOUT),
        (TimeoutError("timed out"), Step.BODY, Reason.READ_TIMEOUT),
        (_errno(errno.ETIMEDOUT), Step.BODY, Reason.READ_TIMEOUT),
        (_errno(errno.ECONNREFUSED), Step.CONNECT, Reason.REFUSED),
        (_errno(errno.ECONNRESET), Step.BODY, Reason.RESET),
        (_errno(errno.EPIPE), Step.HEAD, Reason.RESET),
        (_errno(errno.EHOSTUNREACH), Step.CONNECT, Reason.UNREACHABLE),
        (_errno(errno.ENETUNREACH), Step.CONNECT, Reason.UNREACHABLE),
        (_errno(errno.ENETDOWN), Step.BODY, Reason.UNREACHABLE),
        (_errno(errno.EMFILE), Step.CONNECT, Reason.LOCAL),
        (_errno(errno.EPERM), Step.CONNECT, Reason.LOCAL),
        (Ended(), Step.HEAD, Reason.CLOSED_EARLY),
        (Ended(7), Step.BODY, Reason.SHORT_BODY),
        (Aborted(), Step.BODY, Reason.ABORTED),
        (ssl.SSLEOFError(8, "EOF"), Step.CONNECT, Reason.TLS),
        (ssl.SSLEOFError(8, "EOF"), Step.HEAD, Reason.CLOSED_EARLY),
        (ssl.SSLEOFError(8, "EOF"), Step.BODY, Reason.SHORT_BODY),
        (_tls("DECRYPTION_FAILED_OR_BAD_RECORD_MAC"), Step.BODY, Reason.TLS),
        (_tls("WRONG_VERSION_NUMBER"), Step.CONNECT, Reason.TLS),
    ],
)
def test_what_breaks_on_the_way_is_named(error, step, reason):
    found = translated(error, HOST, step)
    assert isinstance(found, NetworkFailed)
    assert (found.data["reason"], found.data["host"]) == (reason, HOST)
    assert HOST in found.message
    assert "\n" not in found.message
    assert "secret" not in found.message


@pytest.mark.parametrize(
    "error",
    [
        Malformed("two of them"),
        http.client.BadStatusLine("secret"),
        http.client.LineTooLong("header line"),
        http.client.UnknownProtocol("secret"),
    ],
)
def test_what_is_no_http_is_a_bad_answer_and_its_bytes_are_not_told(error):
    found = translated(error, HOST, Step.HEAD)
    assert isinstance(found, BadAnswer)
    assert found.data == {"reason": "protocol", "host": HOST, "is_lasting": False}
    assert "secret" not in found.message


@pytest.mark.parametrize(
    ("reason", "is_lasting"),
    [("WRONG_VERSION_NUMBER", True), ("UNSUPPORTED_PROTOCOL", True), ("UNEXPECTED_MESSAGE", False)],
)
def test_trying_again_is_no_use_where_two_can_not_agree_on_tls(reason, is_lasting):
    assert translated(_tls(reason), HOST, Step.CONNECT).data["is_lasting"] is is_lasting


def test_a_mistake_of_ours_is_not_taken_for_the_servers():
    with pytest.raises(ZeroDivisionError), translating(HOST, Step.HEAD):
        _ = 1 / 0
    with pytest.raises(StokerError, match="as it is"), translating(HOST, Step.HEAD):
        raise StokerError("as it is")
