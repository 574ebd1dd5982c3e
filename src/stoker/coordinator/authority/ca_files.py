"""The fleet's CA on disk: `state/authority/ca.key`, for its owner alone, made once.

Key and certificate stand in one file, so that they appear together or not at all, whoever is first; `ca.pem` beside it
is the certificate alone, for whoever is to trust it. A file that others may read, or that is damaged, is an error:
nothing is ever made in its place.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat

from stoker.host.durable import create_file, read_regular, translated, write_file
from stoker.host.tls.authority import KeyPair, Signer, make_ca
from stoker.model.encoding import encode
from stoker.model.errors import Damaged, LocalFile, StokerError

KEY_NAME = "ca.key"
CERTIFICATE_NAME = "ca.pem"
_MOST_BYTES = 64 * 1024
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\n?", re.DOTALL)


class FleetCa:
    """The CA of one fleet, ready to sign."""

    def __init__(self, folder: str, pair: KeyPair) -> None:
        self.folder = folder
        self.signer = Signer(pair)
        self.certificate_pem = pair.certificate_pem
        self.certificate_file = os.path.join(folder, CERTIFICATE_NAME)
        self._secret = hashlib.sha256(b"stoker/authority/derived/1\0" + pair.key_pem.encode()).digest()

    def derive(self, domain: str, *parts: str) -> bytes:
        """Give 32 bytes that only this CA's owner can know, always the same for the same words."""
        return hmac.new(self._secret, encode([domain, *parts]), hashlib.sha256).digest()


def open_ca(folder: str, *, fleet: str, now_s: float) -> FleetCa:
    """Give the CA of a folder; made, for us alone, if there is none."""
    path = os.path.join(folder, KEY_NAME)
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    if not os.path.lexists(path):
        made = make_ca(f"stoker fleet of {fleet}", now_s=now_s)
        # False: another process was first, and its CA counts.
        create_file(path, f"{made.key_pem}{made.certificate_pem}".encode(), 0o600)
    try:
        ca = FleetCa(folder, _read(path))
    except StokerError as error:
        if isinstance(error, Damaged):
            raise _damaged(path, error.message) from None
        raise
    _publish(ca)
    return ca


def _read(path: str) -> KeyPair:
    try:
        mode = os.stat(path).st_mode
        text = read_regular(path, _MOST_BYTES).decode()
    except UnicodeDecodeError:
        raise Damaged("it is no text") from None
    except OSError as error:
        raise LocalFile(f"the fleet's CA in {path} can't be read: {error.strerror or error}", path=path) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        hint = (
            f"chmod 600 {path}; if somebody may have read it, move it away: a new CA is made, and machines join again"
        )
        raise LocalFile(f"others may read the fleet's CA key in {path}", hint=hint, path=path)
    blocks = {found[1]: found[0] for found in _BLOCK.finditer(text)}
    if set(blocks) != {"PRIVATE KEY", "CERTIFICATE"}:
        raise Damaged("it does not hold one key and one certificate")
    return KeyPair(certificate_pem=blocks["CERTIFICATE"], key_pem=blocks["PRIVATE KEY"])


def _publish(ca: FleetCa) -> None:
    wanted = ca.certificate_pem.encode()
    try:
        is_there = read_regular(ca.certificate_file, _MOST_BYTES) == wanted
    except OSError:
        is_there = False
    if not is_there:
        write_file(ca.certificate_file, wanted)


def _damaged(path: str, why: str) -> Damaged:
    hint = "put back a backup of it; or move it away: a new CA is made, and every machine has to join again"
    return Damaged(f"the fleet's CA in {path} is damaged: {why}", hint=hint, path=path)
