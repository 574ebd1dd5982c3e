"""`state/joined/worker.json` and `operator.json`: the fleet that this machine, or a person on it, has joined.

Beside them lie what was given: the fleet's CA, a machine's certificate with its key (one file, replaced in one step),
a person's token. Only their owner may read them. The record that names them is written last, so a join that was cut
off in the middle leaves what was there before.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from enum import StrEnum
from typing import Any

from stoker.host.durable import read_regular, translated, write_file
from stoker.host.http.settings import FleetIdentity
from stoker.model.errors import Damaged, LocalFile
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads
from stoker.model.principals import Role

FOLDER = "joined"
_LARGEST_BYTES = 64 * 1024


class Side(StrEnum):
    """As what this home has joined."""

    WORKER = "worker"
    OPERATOR = "operator"

    @classmethod
    def of(cls, role: Role) -> Side:
        """Give the side that somebody with a role is on."""
        return cls.WORKER if role is Role.WORKER else cls.OPERATOR


@frozen
class Membership:
    """One fleet that this home belongs to, and as whom."""

    url: str
    """`https://HOST:PORT`, as it was joined."""
    name: str
    """The machine's in the fleet, or the token's."""
    role: Role
    ca_file: str
    certificate_file: str = ""
    """A machine's: certificate and key."""
    token_file: str = ""
    """A person's."""
    fingerprint: str = ""
    """SHA-256 of the CA."""
    joined_s: float = 0.0
    expires_s: float | None = None
    """When what was given ends, as far as was known at the time."""

    @property
    def side(self) -> Side:
        return Side.of(self.role)

    @property
    def identity(self) -> FleetIdentity:
        """Whom to trust, and as whom to speak."""
        return FleetIdentity(ca_file=self.ca_file, certificate_file=self.certificate_file)

    def token(self) -> str:
        """Read the person's token; empty for a machine. Raises `LocalFile`."""
        return _read_secret(self.token_file).decode().strip() if self.token_file else ""


@frozen
class Given:
    """What joining gave, as texts."""

    url: str
    name: str
    role: Role
    ca_pem: str
    fingerprint: str
    certificate_pem: str = ""
    key_pem: str = ""
    token: str = ""
    joined_s: float = 0.0
    expires_s: float | None = None


def read_joined(state: str, side: Side) -> Membership | None:
    """Give the fleet that was joined; nothing if none was.

    Raises `LocalFile` where others may read the secrets, and `Damaged` for a record that is none.
    """
    path = _record(state, side)
    try:
        data = read_regular(path, _LARGEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalFile(f"{path} can't be read: {error.strerror}", path=path) from None
    try:
        found = _from_dict(loads(data), os.path.dirname(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        hint = "`stoker join CODE@HOST --again` writes it anew"
        raise Damaged(f"{path} is no record of a fleet that was joined", hint=hint, path=path) from None
    for secret in filter(None, (found.certificate_file, found.token_file)):
        _judge_mode(secret)
    return found


def write_joined(state: str, given: Given) -> Membership:
    """Keep what joining gave, for us alone: contents first, the record last; what an earlier one named is removed."""
    side = Side.of(given.role)
    folder = make_folder(state)
    # By their CA: until the record names the new files, the old ones are whole.
    stem = os.path.join(folder, f"{side}-{given.fingerprint[:12]}")
    made = Membership(
        url=given.url,
        name=given.name,
        role=given.role,
        ca_file=f"{stem}.ca.pem",
        certificate_file=f"{stem}.pem" if given.certificate_pem else "",
        token_file=f"{stem}.token" if given.token else "",
        fingerprint=given.fingerprint,
        joined_s=given.joined_s,
        expires_s=given.expires_s,
    )
    write_file(made.ca_file, given.ca_pem.encode(), mode=0o600)
    if made.certificate_file:
        write_certificate(made.certificate_file, given.certificate_pem, given.key_pem)
    if made.token_file:
        write_file(made.token_file, f"{given.token}\n".encode(), mode=0o600)
    write_file(_record(state, side), dumps(_to_dict(made), indent=1).encode(), mode=0o600)
    _remove_others(folder, made)
    return made


def make_folder(state: str) -> str:
    """Make the folder for what joining gives, for us alone, and give its path."""
    folder = os.path.join(state, FOLDER)
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
    return folder


def write_certificate(path: str, certificate_pem: str, key_pem: str) -> None:
    """Replace a machine's certificate and key, both in one step. Raises `Damaged` if they do not belong together."""
    both = f"{certificate_pem.strip()}\n{key_pem.strip()}\n".encode()
    _judge_pair(path, both)
    write_file(path, both, mode=0o600)


def _record(state: str, side: Side) -> str:
    return os.path.join(state, FOLDER, f"{side}.json")


def _remove_others(folder: str, made: Membership) -> None:
    kept = {made.ca_file, made.certificate_file, made.token_file}
    with suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(f"{made.side}-") and path not in kept:
                os.unlink(path)


def _judge_pair(path: str, both: bytes) -> None:
    """Try a certificate and its key before they take the place of others: with a wrong pair nobody could ask again."""
    import ssl  # noqa: PLC0415 - finding a coordinator needs none of it

    trial = f"{path}.trial"
    write_file(trial, both, mode=0o600)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(trial)
    except ssl.SSLError:
        raise Damaged("the coordinator gave a certificate that is not for this machine's key") from None
    finally:
        os.unlink(trial)


def _read_secret(path: str) -> bytes:
    _judge_mode(path)
    try:
        return read_regular(path, _LARGEST_BYTES)
    except OSError as error:
        raise LocalFile(f"{path} can't be read: {error.strerror}", path=path) from None


def _judge_mode(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        hint = "`stoker join CODE@HOST --again` writes it anew"
        raise LocalFile(f"{path} can't be read: {error.strerror}", hint=hint, path=path) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LocalFile(f"others may read the secret in {path}", hint=f"chmod 600 {path}", path=path)


def _to_dict(membership: Membership) -> dict[str, Any]:
    files = {name: os.path.basename(getattr(membership, name)) for name in _FILES}
    return {
        "v": 1,
        "url": membership.url,
        "name": membership.name,
        "role": str(membership.role),
        **files,
        "fingerprint": membership.fingerprint,
        "joined_s": membership.joined_s,
        "expires_s": membership.expires_s,
    }


def _from_dict(raw: dict[str, Any], folder: str) -> Membership:
    # Names, not paths: a home that was moved still works, and a record can't point elsewhere.
    files = {name: os.path.join(folder, os.path.basename(raw[name])) if raw[name] else "" for name in _FILES}
    expires_s = raw.get("expires_s")
    return Membership(
        url=str(raw["url"]),
        name=str(raw["name"]),
        role=Role(raw["role"]),
        ca_file=files["ca_file"],
        certificate_file=files["certificate_file"],
        token_file=files["token_file"],
        fingerprint=str(raw.get("fingerprint", "")),
        joined_s=float(raw.get("joined_s", 0.0)),
        expires_s=None if expires_s is None else float(expires_s),
    )


_FILES = ("ca_file", "certificate_file", "token_file")
