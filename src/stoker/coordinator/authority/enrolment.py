"""What a coordinator needs to let others in: its CA, where they find it, and how long certificates of machines hold."""

from __future__ import annotations

from collections.abc import Callable

from stoker.coordinator.authority.ca_files import FleetCa
from stoker.coordinator.authority.standing import IssuedCertificate
from stoker.host.tls.authority import MACHINE_LIFE_S
from stoker.model.frozen import frozen


@frozen
class Enrolment:
    """Handed in once."""

    ca: FleetCa
    names: Callable[[], tuple[str, ...]]
    """Gives every `HOST:PORT` by which the coordinator can be joined as far as it knows, the best one first."""
    life_s: float = MACHINE_LIFE_S

    def sign(self, csr_pem: str, name: str, *, now_s: float) -> tuple[str, IssuedCertificate]:
        """Make a machine's certificate: what it gets, and what is stored of it."""
        signed = self.ca.signer.machine(csr_pem, name, now_s=now_s, life_s=self.life_s)
        issued = IssuedCertificate(serial=signed.serial, name=name, issued_s=now_s, expires_s=signed.not_after_s)
        return signed.certificate_pem, issued
