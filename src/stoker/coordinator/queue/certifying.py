"""Certificates of machines, in rows: issued, renewed, taken back."""

from __future__ import annotations

from stoker.coordinator.authority.standing import IssuedCertificate
from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.moves import plain, telling
from stoker.coordinator.queue.trust_commands import IssueCertificate
from stoker.coordinator.queue.turn import Turn
from stoker.model.errors import RateLimited
from stoker.model.fleet_events import FleetKinds
from stoker.model.frozen import changed

MOST_LIVE = 8
"""Certificates of one machine at the same time: two, where nothing goes wrong."""
CERTIFICATE_FIELDS = ("serial", "name", "issued_s", "expires_s", "revoked_s", "why")


def issue_certificate(turn: Turn, asked: IssueCertificate) -> Done:
    """Give a machine its next certificate, if the one that it shows is still good."""
    standing, name = turn.book.standing, asked.certificate.name
    # It was good when the request was judged; somebody may have taken it back since.
    standing.machine(asked.present, name, turn.now_s)
    if len(standing.certificates_of(name, turn.now_s)) >= MOST_LIVE:
        hint = f"is its folder writable? `stoker machines invite --name {name}` lets it begin anew"
        raise RateLimited(f"{name} has {MOST_LIVE} certificates already", hint=hint, retry_after_s=3600)
    put_certificate(turn, asked.certificate, by=name)
    return Done(changed=(name,))


def revoke_all(turn: Turn, machine: str, *, why: str, by: str) -> int:
    """Take back every certificate of a machine, and say how many that were."""
    found = turn.book.standing.certificates_of(machine, turn.now_s)
    for one in found:
        revoke(turn, one, why, by)
    return len(found)


def put_certificate(turn: Turn, certificate: IssuedCertificate, *, by: str, address: str = "") -> None:
    """Let a certificate count."""
    _put(turn, certificate)
    fields = {"serial": certificate.serial, "expires_s": certificate.expires_s, "by": by, "address": plain(address)}
    turn.tell(FleetKinds.CERTIFICATE_ISSUED, machine=certificate.name, fields=telling(fields))


def revoke(turn: Turn, found: IssuedCertificate, why: str, by: str) -> None:
    """Let a certificate count no more."""
    turn.setting.revocations.add_certificate(found.serial)
    _put(turn, changed(found, revoked_s=turn.now_s, why=plain(why)))
    fields = {"serial": found.serial, "why": plain(why), "by": plain(by)}
    turn.tell(FleetKinds.CERTIFICATE_REVOKED, machine=found.name, fields=telling(fields))


def _put(turn: Turn, certificate: IssuedCertificate) -> None:
    turn.book.standing.certificates[certificate.serial] = certificate
    turn.write(turn.statements.put_certificate, **{name: getattr(certificate, name) for name in CERTIFICATE_FIELDS})
