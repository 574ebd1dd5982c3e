"""A coordinator's door for those who join, over real TLS on loopback: its CA, one code, and what strangers would do.

    with Door(tmp_path) as door:
        begin(door.invitation(), house)

The coordinator itself has its own tests; this one can also misbehave.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Self

from stoker.core.clock import Clock, SystemClock
from stoker.core.leases import Role
from stoker.host.certificates import KeyPair, Signer, make_ca, make_key
from stoker.host.tls_contexts import read_peer, server_context
from stoker.protocol.codec import to_json
from stoker.protocol.enrolment_messages import (
    JoinBegin,
    JoinBeginResponse,
    JoinCode,
    JoinFinish,
    JoinFinishResponse,
    RenewCertificate,
    begin_proof,
    finish_proof,
    is_same_proof,
    join_key,
    make_code,
)
from stoker.worker.enrolment import Invitation
from tests.servers.little import Got, LittleServer, Said, said

SERVER_NONCE = "5e" * 16
MONTH_S = 30 * 86400.0


class Door:
    """Answers whoever joins. `ca_shown` is what `begin` shows, `server_ca` who signed the server's certificate."""

    def __init__(
        self,
        folder: Path,
        *,
        role: Role = Role.WORKER,
        name: str = "",
        clock: Clock | None = None,
        life_s: float = MONTH_S,
        server_names: tuple[str, ...] = ("127.0.0.1", "localhost"),
        server_ca: KeyPair | None = None,
        signed_at_s: float | None = None,
        port: int = 0,
    ) -> None:
        self.clock = clock or SystemClock()
        self.now_s = self.clock.wall_s()
        self.ca = make_ca("a fleet", now_s=self.now_s if signed_at_s is None else signed_at_s)
        self.ca_shown = self.ca.certificate_pem
        self.role, self.name, self.life_s = role, name, life_s
        self.code = make_code("K7", bytes(range(8)))
        self.key = stretched(self.code)
        self.finishes: list[JoinFinish] = []
        self.renewals: list[str] = []
        """The machines that asked for their next certificate."""
        self.change: Callable[[Said], Said] = lambda answer: answer
        self._lock = threading.Lock()
        made_s = self.now_s if signed_at_s is None else signed_at_s
        self.server = LittleServer(
            lambda got: self.change(self._answer(got)),
            port=port,
            tls=_server_tls(folder, server_ca or self.ca, server_names, made_s),
        )
        self.url = self.server.url

    def invitation(self) -> Invitation:
        return Invitation(id=self.code.id, key=self.key, url=self.url)

    @property
    def words(self) -> str:
        """What is typed behind `stoker join`."""
        return f"{self.code.text()}@{self.url.removeprefix('https://')}"

    def close(self) -> None:
        self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _answer(self, got: Got) -> Said:
        routes = {"/v1/join/begin": self._begin, "/v1/join/finish": self._finish, "/v1/certificates/renew": self._renew}
        return routes[got.path](got)

    def _begin(self, got: Got) -> Said:
        asked = JoinBegin.model_validate_json(got.body)
        if asked.id != self.code.id:
            return refused("nobody was invited by this code", reason="unknown")
        # Its own CA is what it proves, whatever it shows.
        proof = begin_proof(
            self.key,
            nonce=asked.nonce,
            server_nonce=SERVER_NONCE,
            ca_pem=self.ca.certificate_pem,
            role=self.role,
            name=self.name,
        )
        begun = JoinBeginResponse(
            ca_pem=self.ca_shown,
            nonce=SERVER_NONCE,
            proof=proof,
            role=self.role,
            name=self.name,
            version="1.0",
            server_s=self.now_s,
        )
        return _message(to_json(begun))

    def _finish(self, got: Got) -> Said:
        asked = JoinFinish.model_validate_json(got.body)
        with self._lock:
            self.finishes.append(asked)
        wanted = finish_proof(
            self.key, nonce=asked.nonce, server_nonce=asked.server_nonce, name=asked.name, csr_pem=asked.csr_pem
        )
        if not is_same_proof(wanted, asked.proof):
            return refused("that is not the code", reason="wrong")
        if self.role is Role.WORKER:
            return _message(to_json(self._certificate(asked.csr_pem, asked.name)))
        joined = JoinFinishResponse(name=asked.name, role=self.role, ca_pem=self.ca.certificate_pem, token="t" * 40)
        return _message(to_json(joined))

    def _renew(self, got: Got) -> Said:
        peer = read_peer(got.shown)
        if peer is None:
            return refused("a certificate is needed", reason="certificate")
        self.renewals.append(peer.serial)
        asked = RenewCertificate.model_validate_json(got.body)
        return _message(to_json(self._certificate(asked.csr_pem, peer.machine)))

    def _certificate(self, csr_pem: str, name: str) -> JoinFinishResponse:
        signed = Signer(self.ca).machine(csr_pem, name, now_s=self.now_s, life_s=self.life_s)
        return JoinFinishResponse(
            name=name,
            role=Role.WORKER,
            ca_pem=self.ca.certificate_pem,
            certificate_pem=signed.certificate_pem,
            expires_s=signed.not_after_s,
        )


@lru_cache
def stretched(code: JoinCode) -> bytes:
    """Return a code's key as `join_key` does, slow only once: the tests have one code."""
    return join_key(code)


def refused(message: str, *, reason: str) -> Said:
    """Refuse as a coordinator does."""
    return said({"error": "not_allowed", "message": message, "hint": "", "data": {"reason": reason}}, 403)


def _message(data: bytes) -> Said:
    return Said(headers={"X-Stoker-Protocol": "1"}, body=data)


def _server_tls(folder: Path, ca: KeyPair, names: tuple[str, ...], made_s: float) -> ssl.SSLContext:
    key_pem = make_key()
    certificate, key = folder / "door.pem", folder / "door.key"
    certificate.write_text(Signer(ca).server(key_pem, names, now_s=made_s).certificate_pem)
    key.write_text(key_pem)
    return server_context(certificate_file=str(certificate), key_file=str(key), ca_pem=ca.certificate_pem)
