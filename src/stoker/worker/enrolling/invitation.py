"""`CODE@HOST[:PORT]`, as a person pastes it: the code taken apart, and where to join."""

from __future__ import annotations

from stoker.host.http.addresses import read_address
from stoker.model.errors import Usage
from stoker.model.frozen import frozen
from stoker.wire.finding import DEFAULT_PORT, SECURE
from stoker.wire.join_proofs import JoinCode, NotACode, read_code

_HINT = "CODE@HOST[:PORT], as `stoker machines invite` printed it"


@frozen
class Invitation:
    """Where to join, and with what."""

    code: JoinCode
    url: str
    """`https://HOST:PORT`"""

    @property
    def host(self) -> str:
        """Where, as people say it."""
        return self.url.removeprefix(SECURE)


def read_invitation(text: str) -> Invitation:
    """Read what a person pasted. Raises `Usage` with what is wrong with it."""
    code, at, host = text.strip().partition("@")
    if not at or not host:
        raise Usage(f"{text!r} does not say where to join", hint=_HINT)
    scheme, separator, rest = host.partition("://")
    if separator and scheme != "https":
        raise Usage("a fleet is joined over TLS alone", hint=_HINT)
    host = (rest if separator else host).rstrip("/")
    if "/" in host:
        raise Usage(f"{host!r} is no host to join at", hint=_HINT)
    has_port = not host.endswith("]") and host.rpartition(":")[2].isdigit()
    address = read_address(f"{SECURE}{host}{'' if has_port else f':{DEFAULT_PORT}'}")
    if address.authorization or address.target != "/":
        # What stands before a second @ may be a password: it is not repeated.
        raise Usage(f"{address.origin.host!r} is no host to join at as it stands", hint=_HINT)
    try:
        return Invitation(code=read_code(code), url=str(address.origin))
    except NotACode as error:
        raise Usage(f"{code!r} is no code: {error}", hint=_HINT) from None
