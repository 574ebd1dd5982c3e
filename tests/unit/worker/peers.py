"""Machines of a fleet with real certificates, for tests of what they give to each other."""

from __future__ import annotations

from pathlib import Path

from stoker.core.clock import SystemClock
from stoker.host.certificates import Signer, make_ca, make_csr, make_key
from stoker.host.http.exchange import FleetIdentity

CLOCK = SystemClock()


class Authority:
    """A fleet's CA, and the files of machines that it signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = make_ca("a fleet", now_s=CLOCK.wall_s())
        self._signer = Signer(self._ca)
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_text(self._ca.certificate_pem)

    def identity(self, machine: str, *, life_s: float = 86400.0) -> FleetIdentity:
        """Return the identity of a machine, newly signed: certificate and key in one file."""
        key = make_key()
        signed = self._signer.machine(make_csr(key, machine), machine, now_s=CLOCK.wall_s(), life_s=life_s)
        path = self._folder / f"{machine}.pem"
        fresh = path.with_suffix(".new")
        fresh.write_text(signed.certificate_pem + key)
        fresh.chmod(0o600)
        fresh.replace(path)
        return FleetIdentity(ca_file=str(self.ca_file), certificate_file=str(path))
