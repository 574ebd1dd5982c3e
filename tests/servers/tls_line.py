"""Somebody who speaks to a coordinator over TLS by hand: one connection, from an address of its own, kept alive."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stoker.host.certificates import make_csr, make_key
from stoker.host.tls_contexts import client_context, unproven_context
from stoker.protocol.enrolment_messages import begin_proof, finish_proof, join_key, read_code
from tests.servers.coordinator import Fleet

_addresses = count(10)


@cache
def key_of(code: str) -> bytes:
    """Stretch a code; once, since it is slow on purpose."""
    return join_key(read_code(code))


class Line:
    """One connection. `address` is where it comes from: each line from another one of loopback's, unless told."""

    def __init__(self, url: str, context: ssl.SSLContext | None, *, token: str = "", address: str = "") -> None:
        at = urlsplit(url)
        number = next(_addresses)
        self.address = address or f"127.0.{number // 250}.{number % 250 + 1}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        source = (self.address, 0)
        host, port = str(at.hostname), at.port
        self.connection: http.client.HTTPConnection
        if context is None:
            self.connection = http.client.HTTPConnection(host, port, timeout=30, source_address=source)
        else:
            self.connection = http.client.HTTPSConnection(
                host, port, timeout=30, source_address=source, context=context
            )

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Ask, and give status and answer."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = {"Content-Type": "application/json"} if data is not None else {}
        self.connection.request(method, path, data, {**named, **self._headers, **headers})
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith((b"{", b"[")) else text

    def close(self) -> None:
        self.connection.close()


class Lines:
    """All lines to one coordinator; closed together."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        assert fleet.secure is not None
        self.url = fleet.url
        self.ca_pem = Path(fleet.secure.ca_file).read_text()
        self._folder = folder
        self._open: list[Line] = []

    def open(self, *, token: str = "", certificate: str = "", context: ssl.SSLContext | None = None, **at: str) -> Line:
        """Connect as a person with a token, a machine with a certificate, or nobody."""
        trusting = context or client_context(self.ca_pem, certificate_file=certificate, key_file=certificate)
        line = Line(at.pop("url", self.url), trusting, token=token, **at)
        self._open.append(line)
        return line

    def begin(self, code: str, *, url: str = "", address: str = "") -> tuple[int, dict[str, Any]]:
        """Ask the first question of whoever joins; what was sent stands in the answer as `asked`."""
        line = self.open(context=unproven_context(), url=url or self.url, address=address)
        asked = {"id": read_code(code).id, "nonce": secrets.token_hex(16)}
        status, begun = line.ask("POST", "/v1/join/begin", asked)
        return status, {**begun, "asked": asked}

    def is_proven(self, code: str, begun: dict[str, Any]) -> bool:
        """Return whether the CA is the one that the code was made for."""
        proof = begin_proof(
            key_of(code),
            nonce=begun["asked"]["nonce"],
            server_nonce=begun["nonce"],
            ca_pem=begun["ca_pem"],
            role=begun["role"],
            name=begun["name"],
        )
        return proof == begun["proof"]

    def words(self, code: str, begun: dict[str, Any], name: str, csr_pem: str = "") -> dict[str, Any]:
        """Return what whoever has the code says last."""
        nonces = {"nonce": begun["asked"]["nonce"], "server_nonce": begun["nonce"]}
        proof = finish_proof(key_of(code), name=name, csr_pem=csr_pem, **nonces)
        return {"id": read_code(code).id, "name": name, "csr_pem": csr_pem, "proof": proof, **nonces}

    def join(self, code: str, name: str) -> tuple[int, dict[str, Any], str]:
        """Join as an honest machine: status, answer, and the file of certificate and key."""
        key_pem = make_key()
        status, begun = self.begin(code)
        if status != 200:
            return status, begun, ""
        assert self.is_proven(code, begun)
        status, joined = self.open().ask(
            "POST", "/v1/join/finish", self.words(code, begun, name, make_csr(key_pem, name))
        )
        return status, joined, self.keep(name, joined["certificate_pem"] + key_pem) if status == 200 else ""

    def keep(self, name: str, text: str) -> str:
        """Keep a certificate and its key in a file."""
        path = self._folder / f"{name}-{secrets.token_hex(4)}.pem"
        path.write_text(text)
        return str(path)

    def close(self) -> None:
        for line in self._open:
            line.close()
