"""What breaks has one name each: outside exceptions are translated by kind and by how far an exchange had come."""

from __future__ import annotations

import errno
import http.client
import os
import ssl

import pytest

from stoker.core.errors import BadAnswer, NetworkFailed, StokerError
from stoker.host.http.http_errors import Aborted, Ended, ExchangeStep, Malformed, Reason, translated, translating

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
        (TimeoutError("timed out"), ExchangeStep.CONNECT, Reason.CONNECT_TIMEOUT),
        (TimeoutError("timed out"), ExchangeStep.HEAD, Reason.READ_TIMEOUT),
        (TimeoutError("timed out"), ExchangeStep.BODY, Reason.READ_TIMEOUT),
        (_errno(errno.ETIMEDOUT), ExchangeStep.BODY, Reason.READ_TIMEOUT),
        (_errno(errno.ECONNREFUSED), ExchangeStep.CONNECT, Reason.REFUSED),
        (_errno(errno.ECONNRESET), ExchangeStep.BODY, Reason.RESET),
        (_errno(errno.EPIPE), ExchangeStep.HEAD, Reason.RESET),
        (_errno(errno.EHOSTUNREACH), ExchangeStep.CONNECT, Reason.UNREACHABLE),
        (_errno(errno.ENETUNREACH), ExchangeStep.CONNECT, Reason.UNREACHABLE),
        (_errno(errno.ENETDOWN), ExchangeStep.BODY, Reason.UNREACHABLE),
        (_errno(errno.EMFILE), ExchangeStep.CONNECT, Reason.LOCAL),
        (_errno(errno.EPERM), ExchangeStep.CONNECT, Reason.LOCAL),
        (Ended(), ExchangeStep.HEAD, Reason.CLOSED_EARLY),
        (Ended(7), ExchangeStep.BODY, Reason.SHORT_BODY),
        (Aborted(), ExchangeStep.BODY, Reason.ABORTED),
        (ssl.SSLEOFError(8, "EOF"), ExchangeStep.CONNECT, Reason.TLS),
        (ssl.SSLEOFError(8, "EOF"), ExchangeStep.HEAD, Reason.CLOSED_EARLY),
        (ssl.SSLEOFError(8, "EOF"), ExchangeStep.BODY, Reason.SHORT_BODY),
        (_tls("DECRYPTION_FAILED_OR_BAD_RECORD_MAC"), ExchangeStep.BODY, Reason.TLS),
        (_tls("WRONG_VERSION_NUMBER"), ExchangeStep.CONNECT, Reason.TLS),
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
    found = translated(error, HOST, ExchangeStep.HEAD)
    assert isinstance(found, BadAnswer)
    assert found.data == {"reason": "protocol", "host": HOST, "is_lasting": False}
    assert "secret" not in found.message


@pytest.mark.parametrize(
    ("reason", "is_lasting"),
    [("WRONG_VERSION_NUMBER", True), ("UNSUPPORTED_PROTOCOL", True), ("UNEXPECTED_MESSAGE", False)],
)
def test_trying_again_is_no_use_where_two_can_not_agree_on_tls(reason, is_lasting):
    assert translated(_tls(reason), HOST, ExchangeStep.CONNECT).data["is_lasting"] is is_lasting


def test_a_mistake_of_ours_is_not_taken_for_the_servers():
    with pytest.raises(ZeroDivisionError), translating(HOST, ExchangeStep.HEAD):
        _ = 1 / 0
    with pytest.raises(StokerError, match="as it is"), translating(HOST, ExchangeStep.HEAD):
        raise StokerError("as it is")
