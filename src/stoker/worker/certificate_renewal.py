"""Renewal of a machine's certificate at two thirds of its lifetime: a new key each time, written in one step.

Open connections use the old one until their next request, which uses the new one (`host.http` detects that the file
changed). An unreachable coordinator is asked again with backoff. A refusal is logged once, and the request is repeated
all the same: an operator may invite the machine again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stoker.core.clock import Clock
from stoker.core.errors import Damaged, InternalError, LocalFile, StokerError
from stoker.core.frozen import frozen
from stoker.host.background import RecurringTask
from stoker.host.durable import read_regular
from stoker.protocol.discovery import write_certificate
from stoker.protocol.enrolment_messages import JoinFinishResponse, RenewCertificate

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient

RENEWED, NOT_RENEWED = "certificate_renewed", "certificate_not_renewed"
_LONGEST_LOOK_S = 900.0
"""Suspend, or a clock that was set, may bring the moment nearer."""
_SHORTEST_S = 1.0
_LONGEST_PAUSE_S = 3600.0
_PAUSES_PER_LIFE = 100
_MOST_BYTES = 64 * 1024


@frozen
class CertificateTerm:
    """The validity of a certificate, by this machine's clock."""

    written_s: float
    """When it was stored here: its validity starts long before that."""
    ends_s: float

    @property
    def renew_at_s(self) -> float:
        """Two thirds of its life."""
        return self.written_s + max(0.0, self.ends_s - self.written_s) * 2 / 3

    @property
    def pause_s(self) -> float:
        """The pause after a failed request."""
        return min(_LONGEST_PAUSE_S, max(_SHORTEST_S, (self.ends_s - self.written_s) / _PAUSES_PER_LIFE))


def read_term(certificate_file: str) -> CertificateTerm:
    """Read the validity from a certificate file. Raises `LocalFile` and `Damaged`."""
    from stoker.host.certificates import read_certificate  # noqa: PLC0415 - cryptography costs a tenth of a second

    try:
        written_s = os.stat(certificate_file).st_mtime
        data = read_regular(certificate_file, _MOST_BYTES)
    except OSError as error:
        raise LocalFile(f"{certificate_file} can't be read: {error.strerror}", path=certificate_file) from None
    end = b"-----END CERTIFICATE-----"
    head, found, _ = data.partition(end)
    if not found:
        raise Damaged(f"there is no certificate in {certificate_file}", path=certificate_file)
    return CertificateTerm(written_s=written_s, ends_s=read_certificate(head + end + b"\n").not_after_s)


def wait_s(term: CertificateTerm, *, now_s: float) -> float:
    """Return the seconds until the next check."""
    return min(_LONGEST_LOOK_S, max(0.0, term.renew_at_s - now_s))


def renew(name: str, certificate_file: str, renewer: FleetClient) -> JoinFinishResponse:
    """Request the next certificate for a new key, and replace both files."""
    from stoker.host.certificates import make_csr, make_key  # noqa: PLC0415 - cryptography costs a tenth of a second

    key_pem = make_key()
    joined = renewer.renew_certificate(RenewCertificate(csr_pem=make_csr(key_pem, name)))
    write_certificate(certificate_file, joined.certificate_pem, key_pem)
    return joined


class CertificateRenewal(RecurringTask):
    """Renews one machine's certificate, in a thread of its own, until it is closed."""

    def __init__(
        self,
        renewer: FleetClient,
        *,
        name: str,
        certificate_file: str,
        clock: Clock,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        super().__init__("certificate", retry_s=_LONGEST_PAUSE_S)
        self._name = name
        self._file = certificate_file
        self._renewer = renewer
        self._clock = clock
        self._tell = tell
        self._last_logged = ""

    def act(self) -> float:
        """Renew if it is time; return the seconds until the next check."""
        pause_s = _LONGEST_PAUSE_S
        try:
            term = read_term(self._file)
            pause_s = term.pause_s
            left_s = wait_s(term, now_s=self._clock.wall_s())
            if left_s > 0:
                return left_s
            joined = renew(self._name, self._file, self._renewer)
        except StokerError as error:
            self._trouble(error)
            return pause_s
        self._last_logged = ""
        self._tell(RENEWED, {"worker": self._name, "expires_s": joined.expires_s})
        return _SHORTEST_S

    def _on_error(self, error: Exception) -> None:
        with suppress(Exception):
            self._trouble(InternalError(f"{type(error).__name__}: {error}"))

    def _trouble(self, error: StokerError) -> None:
        # Logged once for each error: the request is repeated many times.
        if str(error) != self._last_logged:
            self._last_logged = str(error)
            self._tell(NOT_RENEWED, {"worker": self._name, "why": error.message, "hint": error.hint})
