"""Failures between us and a server: every outside exception becomes one error with a reason."""

from __future__ import annotations

import errno
import http.client
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from stoker.core.errors import BadAnswer, NetworkFailed, StokerError


class Reason(StrEnum):
    """What broke."""

    DNS = "dns"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect_timeout"
    READ_TIMEOUT = "read_timeout"
    RESET = "reset"
    CLOSED_EARLY = "closed_early"
    """Before the head of the response was complete."""
    SHORT_BODY = "short_body"
    """Before the body was complete."""
    LONG_BODY = "long_body"
    """More bytes came than the body has. The body was returned first."""
    TLS = "tls"
    CERTIFICATE = "certificate"
    PROXY = "proxy"
    PROXY_AUTH = "proxy_auth"
    PROTOCOL = "protocol"
    """Bytes that are not HTTP, or contradict themselves."""
    REDIRECT = "redirect"
    ABORTED = "aborted"
    """By ourselves."""
    LOCAL = "local"
    """A failure of this computer: too many open files, its own firewall."""


class ExchangeStep(StrEnum):
    """How far an exchange had come."""

    CONNECT = "connect"
    HEAD = "head"
    BODY = "body"


class Aborted(Exception):
    """The exchange was aborted by our side."""


class Malformed(Exception):
    """A server sent invalid HTTP; the text names the error."""


class Overlong(Malformed):
    """A server sends more after the end of the body."""


class Ended(Exception):
    """The other side closed the connection in the middle."""

    def __init__(self, missing_bytes: int | None = None) -> None:
        super().__init__()
        self.missing_bytes = missing_bytes


TROUBLE = (OSError, http.client.HTTPException, Aborted, Malformed, Ended)
"""Exceptions of the network, before they are translated."""


def network_failed(
    reason: Reason, host: str, what: str, *, hint: str = "", is_lasting: bool = False, **data: object
) -> NetworkFailed:
    """Return the error of a failure on the way to a host."""
    return NetworkFailed(what, hint=hint, reason=reason.value, host=host, is_lasting=is_lasting, **data)


def bad_answer(host: str, what: str, *, reason: Reason = Reason.PROTOCOL, is_lasting: bool = False) -> BadAnswer:
    """Return the error of an invalid response."""
    return BadAnswer(what, reason=reason.value, host=host, is_lasting=is_lasting)


def translated(error: Exception, host: str, step: ExchangeStep) -> StokerError:
    """Translate what a socket, TLS or `http.client` raised. The message names the host and nothing else of the URL."""
    found: StokerError
    match error:
        case Aborted():
            found = network_failed(Reason.ABORTED, host, f"the exchange with {host} was stopped")
        case ssl.SSLError():
            found = _tls(error, host, step)
        case TimeoutError():
            found = _too_slow(host, step)
        case Ended():
            found = _ended(host, step, error.missing_bytes)
        case Overlong():
            what = f"{host} sent more bytes than it announced"
            found = bad_answer(host, what, reason=Reason.LONG_BODY)
        case OSError(errno=int(code)):
            found = from_errno(code, host)
        case _:
            found = bad_answer(host, f"{host} sent a response that is not HTTP{_detail(error)}")
    return found


@contextmanager
def translating(host: str, step: ExchangeStep) -> Iterator[None]:
    """Translate network exceptions of this block. Others are internal errors and pass."""
    try:
        yield
    except TROUBLE as error:
        raise translated(error, host, step) from error


def proxy_refused(status: int, host: str) -> NetworkFailed:
    """Return the error of a proxy that refused."""
    if status == 407:
        what = f"the proxy {host} requires other credentials (407)"
        hint = "put them into its address: http://NAME:PASSWORD@HOST:PORT"
        return network_failed(Reason.PROXY_AUTH, host, what, hint=hint, is_lasting=True, status=status)
    return network_failed(Reason.PROXY, host, f"the proxy {host} made no tunnel: status {status}", status=status)


def blamed_on_proxy(error: StokerError, host: str) -> StokerError:
    """Turn a failure on the way to a proxy into the proxy's, except an abort by our side."""
    if not isinstance(error, NetworkFailed | BadAnswer) or error.data["reason"] == Reason.ABORTED:
        return error
    hint = "check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; NO_PROXY lists the hosts to reach directly"
    what = f"proxy failed: {error.message}"
    is_unknown = error.data.get("is_unknown_name", False)
    return network_failed(Reason.PROXY, host, what, hint=hint, cause=error.data["reason"], is_unknown_name=is_unknown)


def from_errno(code: int, host: str) -> NetworkFailed:
    """Return the error for an errno."""
    if code in _RESET:
        return network_failed(Reason.RESET, host, f"{host} cut the connection")
    if code == errno.ECONNREFUSED:
        hint = "check that the server is running, and its port"
        return network_failed(Reason.REFUSED, host, f"{host} refused the connection", hint=hint)
    if code in _UNREACHABLE:
        hint = "check this computer's network"
        return network_failed(Reason.UNREACHABLE, host, f"no route to {host}: {_errno_text(code)}", hint=hint)
    if code == errno.ETIMEDOUT:
        return network_failed(Reason.READ_TIMEOUT, host, f"{host} no longer responds")
    return network_failed(Reason.LOCAL, host, f"this computer could not connect to {host}: {_errno_text(code)}")


_RESET = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN, errno.ENOTCONN})
_UNREACHABLE = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
)


def _too_slow(host: str, step: ExchangeStep) -> NetworkFailed:
    if step is ExchangeStep.CONNECT:
        hint = "check this computer's network, and whether it needs a proxy (HTTPS_PROXY)"
        return network_failed(Reason.CONNECT_TIMEOUT, host, f"{host} did not take the connection in time", hint=hint)
    what = "did not finish the head of its answer in time" if step is ExchangeStep.HEAD else "sent nothing for too long"
    return network_failed(Reason.READ_TIMEOUT, host, f"{host} {what}")


def _ended(host: str, step: ExchangeStep, missing_bytes: int | None = None) -> NetworkFailed:
    if step is ExchangeStep.BODY:
        place = "before the body was whole" if missing_bytes is None else f"{missing_bytes} bytes before the end"
        what = f"{host} closed the connection {place}"
        return network_failed(Reason.SHORT_BODY, host, what, missing_bytes=missing_bytes)
    return network_failed(Reason.CLOSED_EARLY, host, f"{host} closed the connection without an answer")


def _tls(error: ssl.SSLError, host: str, step: ExchangeStep) -> NetworkFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate(error, host)
    code: str = getattr(error, "reason", None) or type(error).__name__
    # Older versions of Python have no class for it.
    is_end = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or code == "UNEXPECTED_EOF_WHILE_READING"
    if is_end and step is not ExchangeStep.CONNECT:
        return _ended(host, step)
    hint = "does the port speak TLS? http:// is for one that does not" if code in _NO_TLS else ""
    text = code.replace("_", " ").lower()
    is_lasting = code in _LASTING_TLS or code in _NO_TLS
    return network_failed(Reason.TLS, host, f"no TLS with {host}: {text}", hint=hint, is_lasting=is_lasting, tls=code)


_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
_LASTING_TLS = frozenset(
    {
        "NO_PROTOCOLS_AVAILABLE",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "UNSUPPORTED_PROTOCOL",
    }
)


def _certificate(error: ssl.SSLCertVerificationError, host: str) -> NetworkFailed:
    hint = _CERTIFICATE_HINTS.get(error.verify_code, "")
    text = (error.verify_message or "not valid").rstrip(".").splitlines()[0]
    what = f"the certificate of {host} can't be trusted: {text}"
    about = {"verify_code": error.verify_code}
    return network_failed(Reason.CERTIFICATE, host, what, hint=hint, is_lasting=True, **about)


_UNKNOWN_ISSUER = "if you trust its issuer, name a file with the issuer's certificate in SSL_CERT_FILE"
_WRONG_NAME = "check the host in the address; the server's certificate is for another one"
# X509_V_ERR_… of OpenSSL.
_CERTIFICATE_HINTS = {
    2: _UNKNOWN_ISSUER,
    9: "it is not valid yet: check this computer's clock",
    10: "it has expired: the server's operator must renew it; check this computer's clock",
    18: _UNKNOWN_ISSUER,
    19: _UNKNOWN_ISSUER,
    20: _UNKNOWN_ISSUER,
    21: _UNKNOWN_ISSUER,
    62: _WRONG_NAME,
    64: _WRONG_NAME,
}


def _detail(error: Exception) -> str:
    # Messages of `http.client` may contain a server's bytes, even a whole line: only our own text is passed on.
    if isinstance(error, Malformed):
        return f": {error}"
    if isinstance(error, http.client.LineTooLong):
        return ": a line without end"
    return ""


def _errno_text(code: int) -> str:
    return os.strerror(code).lower()
