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
from collections.abc import Callable, Iterable

from stoker.core.clock import Clock
from stoker.core.digests import encode
from stoker.core.errors import Damaged, LocalFile, StokerError
from stoker.host.durable import create_file, read_regular, translated, write_file
from stoker.host.tls.certificates import (
    SERVER_LIFE_S,
    KeyPair,
    Signer,
    is_signed_by,
    make_ca,
    make_key,
    names_in,
    read_certificate,
)

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
        """Return 32 bytes that only this CA's owner can know, always the same for the same words."""
        return hmac.new(self._secret, encode([domain, *parts]), hashlib.sha256).digest()


def open_ca(folder: str, *, fleet: str, now_s: float) -> FleetCa:
    """Return the CA of a folder; made, for us alone, if there is none."""
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


# The certificate that the coordinator itself shows: made anew before it expires, and when its names change.
#
# Key and certificate stand in one file, `state/authority/server.pem`, for its owner alone. Whoever serves asks now and
# then, and loads it again where it is new.

NAME = "server.pem"
_SERVER_CERTIFICATE_MOST_BYTES = 256 * 1024
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
            text = read_regular(self.path, _SERVER_CERTIFICATE_MOST_BYTES).decode()
            pem = text[text.index(_MARK) :]
            found = read_certificate(pem)
            has_names, is_ours = names <= names_in(pem), is_signed_by(pem, self._ca.certificate_pem)
        except (OSError, ValueError, Damaged):
            return False
        now_s = self._clock.wall_s()
        left_s = found.not_after_s - now_s
        return has_names and is_ours and found.not_before_s <= now_s and left_s > self._life_s / 3
