"""The certificate that the coordinator itself shows: made anew before it expires, and when its names change.

Key and certificate stand in one file, `state/authority/server.pem`, for its owner alone. Whoever serves asks now and
then, and loads it again where it is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from stoker.coordinator.authority.ca_files import FleetCa
from stoker.host.durable import read_regular, write_file
from stoker.host.tls.authority import SERVER_LIFE_S
from stoker.host.tls.keys import make_key
from stoker.host.tls.reading import is_signed_by, names_in, read_certificate
from stoker.model.clock import Clock
from stoker.model.errors import Damaged

NAME = "server.pem"
_MOST_BYTES = 256 * 1024
_MARK = "-----BEGIN CERTIFICATE-----"


class ServerCertificate:
    """One coordinator's. `names` gives the hosts and addresses by which it is asked, as they are now."""

    def __init__(
        self, ca: FleetCa, names: Callable[[], Iterable[str]], *, clock: Clock, life_s: float = SERVER_LIFE_S
    ) -> None:
        self.path = os.path.join(ca.folder, NAME)
        self._ca = ca
        self._names = names
        self._clock = clock
        self._life_s = life_s

    def ensure(self) -> bool:
        """Have one that holds for our names and for a good while; true: it is a new one."""
        names = tuple(dict.fromkeys(self._names()))
        if self._is_good(frozenset(names)):
            return False
        key_pem = make_key()
        signed = self._ca.signer.server(key_pem, names, now_s=self._clock.wall_s(), life_s=self._life_s)
        write_file(self.path, f"{key_pem}{signed.certificate_pem}".encode(), mode=0o600)
        return True

    def _is_good(self, names: frozenset[str]) -> bool:
        try:
            text = read_regular(self.path, _MOST_BYTES).decode()
            pem = text[text.index(_MARK) :]
            found = read_certificate(pem)
            has_names, is_ours = names <= names_in(pem), is_signed_by(pem, self._ca.certificate_pem)
        except (OSError, ValueError, Damaged):
            return False
        now_s = self._clock.wall_s()
        left_s = found.not_after_s - now_s
        return has_names and is_ours and found.not_before_s <= now_s and left_s > self._life_s / 3
