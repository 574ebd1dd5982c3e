"""What was taken back, beside the CA and in no backup: a database that is put back brings none of it to life again.

One line for each, only ever added: `certificate NUMBER` or `token DIGEST`. It is on disk before the database knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from stoker.coordinator.authority.standing import Standing
from stoker.host.durable import read_regular, sync_descriptor, translated
from stoker.model.errors import LocalFile
from stoker.model.frozen import changed

NAME = "revoked"
_MOST_BYTES = 64 * 1024 * 1024
_CERTIFICATE, _TOKEN = "certificate", "token"
_WHY = "taken back before the database was restored"


class Revocations:
    """One fleet's; without a path they are remembered in the database alone."""

    def __init__(self, path: str = "") -> None:
        self._path = path

    def add_certificate(self, serial: str) -> None:
        """Write down that a certificate counts no more."""
        self._add(_CERTIFICATE, serial)

    def add_token(self, sha256: str) -> None:
        """Write down that a token counts no more."""
        self._add(_TOKEN, sha256)

    def apply(self, standing: Standing, now_s: float) -> None:
        """Take back, of what was read from a database, all that was taken back at any time."""
        for kind, id_ in self._lines():
            if kind == _CERTIFICATE and (certificate := standing.certificates.get(id_)) is not None:
                if certificate.revoked_s is None:
                    standing.certificates[id_] = changed(certificate, revoked_s=now_s, why=_WHY)
            elif kind == _TOKEN and (token := standing.tokens.get(id_)) is not None and token.revoked_s is None:
                standing.tokens[id_] = changed(token, revoked_s=now_s)

    def _add(self, kind: str, id: str) -> None:
        if not self._path:
            return
        with translated(self._path):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            # A link that somebody put there is not followed.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._path, flags, 0o600)
            try:
                # On a line of its own, whatever an earlier one that was cut off has left.
                os.write(file, f"\n{kind} {id}\n".encode())
                sync_descriptor(file)
            finally:
                os.close(file)

    def _lines(self) -> Iterable[tuple[str, str]]:
        if not self._path:
            return
        try:
            text = read_regular(self._path, _MOST_BYTES).decode("ascii", errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            # Not to know who was shut out must not let them in.
            raise LocalFile(f"{self._path} can't be read: {error.strerror or error}", path=self._path) from None
        for line in text.splitlines():
            kind, _, id_ = line.partition(" ")
            if id_:
                yield kind, id_
