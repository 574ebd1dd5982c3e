"""Which coordinator is meant, how it is trusted, and what is shown to it.

The one that was named, else the environment's, else the one that serves this home, else the fleet that was joined. On
this machine a coordinator is reached over its Unix socket, where the kernel says who is at the other end, and no token
is needed. A worker joins others by its machine's certificate, and never reads or sends a person's token. People never
use that certificate: they know the fleet's CA from it, and need a token.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.host.durable import read_regular
from stoker.host.http.settings import FleetIdentity
from stoker.model.errors import BadInput, StokerError
from stoker.model.fleet_errors import NoCoordinator
from stoker.model.frozen import frozen
from stoker.wire.joined import Membership, Side, read_joined
from stoker.wire.serve_file import LAST_NAME, ServeFile, living_coordinator, read_serve_file

COORDINATOR = "STOKER_COORDINATOR"
OPERATOR_TOKEN = "STOKER_OPERATOR_TOKEN"  # noqa: S105 - the variable's name
DEFAULT_PORT = 7717
"""Where a coordinator listens unless told otherwise."""
SECURE = "https://"
_MOST_BYTES = 64 * 1024


@frozen
class Found:
    """A coordinator's address, whom to trust there, and the token to show it."""

    url: str
    token: str
    identity: FleetIdentity | None = None
    """Nothing: one whose certificate everybody trusts."""
    name: str = ""
    """Under which this machine joined it; empty: it has not."""
    is_here: bool = False
    """It serves this very home."""

    @property
    def is_secure(self) -> bool:
        """True if it speaks TLS, so that other machines may join it."""
        return self.url.startswith(SECURE)


def find_coordinator(
    at: str, *, environment: Mapping[str, str], state: str, side: Side = Side.OPERATOR
) -> Found | None:
    """Give the coordinator that is meant, or nothing if none is known. Nobody is asked whether it answers."""
    here = living_coordinator(state)
    token = environment.get(OPERATOR_TOKEN, "").strip() if side is Side.OPERATOR else ""
    named = at or environment.get(COORDINATOR, "").strip()
    if named:
        url = whole_address(named)
        if here is not None and here.url.rstrip("/") == url.rstrip("/"):
            return _found_here(here, token, environment, state, side)
        if not url.startswith(SECURE):
            return _found_plain(url, token, environment, state, side)
        member = _membership(state, side, url)
        return Found(url=url, token=token) if member is None else _found_joined(url, member, token, side)
    if here is not None:
        return _found_here(here, token, environment, state, side)
    member = _membership(state, side)
    if member is None or (side is Side.OPERATOR and member.side is Side.WORKER and not token):
        return None
    return _found_joined(member.url, member, token, side)


def no_coordinator_known(state: str) -> NoCoordinator:
    """Make the error of a command that needs a coordinator where none is known, or where it is down."""
    if (gone := coordinator_gone(state)) is not None:
        hint = "`stoker serve` starts it again; --at URL or STOKER_COORDINATOR names another one"
        return NoCoordinator(f"the coordinator of this home ({gone}) is not running", hint=hint)
    if (machine := machine_here(state)) is not None:
        hint = "`stoker machines invite --operator` at the coordinator, then here: stoker join --operator CODE@HOST"
        what = f"this machine works for {machine.url} as {machine.name}; whoever asks that coordinator needs a token"
        return NoCoordinator(what, hint=hint)
    hint = (
        "`stoker serve` starts one here; `stoker join CODE@HOST` joins one elsewhere, "
        "STOKER_COORDINATOR or --at URL (of `stoker work`: --join URL) names it"
    )
    return NoCoordinator("no coordinator is known here", hint=hint)


def coordinator_gone(state: str) -> str | None:
    """Give where the coordinator of this home was, if there was one and it does not run now: its jobs wait for it."""
    found = read_serve_file(state) or read_serve_file(state, LAST_NAME)
    return found.url if found is not None and living_coordinator(state) is None else None


def whole_address(text: str) -> str:
    """Give an address with its scheme and port: `desk` is `https://desk:7717`, `localhost` is `http://localhost:7717`.

    What is not this computer itself is asked over TLS, unless the address says otherwise.
    """
    if "://" in text:
        return text
    from stoker.host.http.addresses import is_this_computer  # noqa: PLC0415 - most commands name no address

    host, _, path = text.partition("/")
    has_port = host.rpartition(":")[2].isdigit() if not host.endswith("]") else False
    bare = host.rpartition(":")[0] if has_port else host
    scheme = "http" if is_this_computer(bare.strip("[]").lower()) else "https"
    return f"{scheme}://{host}{'' if has_port else f':{DEFAULT_PORT}'}{f'/{path}' if path else ''}"


def machine_here(state: str) -> Membership | None:
    """Give the fleet that this machine joined as a worker, if it did."""
    try:
        return read_joined(state, Side.WORKER)
    except StokerError:
        return None


def _found_here(here: ServeFile, token: str, environment: Mapping[str, str], state: str, side: Side) -> Found:
    if not here.ca_file:
        identity = FleetIdentity(sockets=_sockets(here.url, environment, here))
        return Found(url=here.url, token=token, identity=identity, is_here=True)
    # Machines of its own home join it like any other: by their certificate.
    member = read_joined(state, Side.WORKER) if side is Side.WORKER else None
    if member is not None and member.fingerprint == _fingerprint(here.ca_file):
        return Found(url=here.url, token="", identity=member.identity, name=member.name, is_here=True)
    sockets = (here.socket,) if here.socket else ()
    return Found(url=here.url, token=token, identity=FleetIdentity(ca_file=here.ca_file, sockets=sockets), is_here=True)


def _found_plain(url: str, token: str, environment: Mapping[str, str], state: str, side: Side) -> Found:
    """Find a coordinator without TLS: one of this user's on this machine, by its socket; TCP proves nothing."""
    from stoker.host.http.addresses import is_this_computer, read_address, shown  # noqa: PLC0415 - as below

    origin = read_address(url).origin
    if is_this_computer(origin.host):
        last = read_serve_file(state) or read_serve_file(state, LAST_NAME)
        is_own = last is not None and last.url.rstrip("/") == url.rstrip("/")
        sockets = _sockets(url, environment, last if is_own else None)
        return Found(url=url, token=token, identity=FleetIdentity(sockets=sockets))
    if side is Side.WORKER:
        hint = f"join it first: stoker join CODE@{origin.host}; then --join https://{origin.host_and_port}"
        raise BadInput(f"a worker takes jobs from another machine over TLS alone, not from {shown(url)}", hint=hint)
    return Found(url=url, token=token)


def _sockets(url: str, environment: Mapping[str, str], known: ServeFile | None) -> tuple[str, ...]:
    """Return where the socket of a coordinator on this machine may be, best first."""
    from stoker.host.http.addresses import read_address  # noqa: PLC0415 - as below
    from stoker.wire.local_socket import socket_paths  # noqa: PLC0415 - as below

    origin = read_address(url).origin
    recorded = (known.socket,) if known is not None and known.socket else ()
    return tuple(dict.fromkeys((*recorded, *socket_paths(origin.host, origin.port, environment))))


def _found_joined(url: str, member: Membership, token: str, side: Side) -> Found:
    """Ask as whoever joined. What is shown is shown only to whom the fleet's own CA has signed."""
    if member.side is Side.OPERATOR:
        return Found(url=url, token=token or member.token(), identity=member.identity, name=member.name)
    if side is Side.OPERATOR:
        return Found(url=url, token=token, identity=FleetIdentity(ca_file=member.ca_file))
    return Found(url=url, token="", identity=member.identity, name=member.name)


def _membership(state: str, side: Side, url: str = "") -> Membership | None:
    """Give the fleet that was joined: on this side rather than the other, and the one at an address if it is there."""
    sides = (Side.WORKER,) if side is Side.WORKER else (Side.OPERATOR, Side.WORKER)
    found = [member for member in (read_joined(state, one) for one in sides) if member is not None]
    exact = [member for member in found if url and _is_same(member.url, url)]
    return next(iter(exact or found), None)


def _fingerprint(ca_file: str) -> str:
    """Give the fingerprint of this home's own CA; empty where there is none to be read."""
    from stoker.wire.join_proofs import fingerprint  # noqa: PLC0415 - only a worker beside its coordinator asks

    try:
        return fingerprint(read_regular(ca_file, _MOST_BYTES).decode("ascii"))
    except (OSError, ValueError):
        return ""


def _is_same(one: str, other: str) -> bool:
    from stoker.host.http.addresses import origin  # noqa: PLC0415 - most commands name no address

    try:
        return origin(one) == origin(other)
    except BadInput:
        return False
