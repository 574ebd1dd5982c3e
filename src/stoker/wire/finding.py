"""Which coordinator is meant, how it is trusted, and what is shown to it.

The one that was named, else the environment's, else the one that serves this home, else the fleet that was joined. A
worker asks as the machine that joined. People never do: a machine's certificate may not ask what they ask; they know
the fleet's CA from it, and need a token.
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
    """Nothing: it is this computer's own, or one whose certificate everybody trusts."""
    name: str = ""
    """Under which this machine joined it; empty: it has not."""
    is_here: bool = False
    """It serves this very home."""


def find_coordinator(
    at: str, *, environment: Mapping[str, str], state: str, side: Side = Side.OPERATOR
) -> Found | None:
    """Give the coordinator that is meant, or nothing if none is known. Nobody is asked whether it answers."""
    here = living_coordinator(state)
    token = environment.get(OPERATOR_TOKEN, "").strip()
    named = at or environment.get(COORDINATOR, "").strip()
    if named:
        url = whole_address(named)
        # The token of this home's coordinator is shown to nobody else.
        if here is not None and here.url.rstrip("/") == url.rstrip("/"):
            return _found_here(here, token, state, side)
        member = _membership(state, side, url) if url.startswith(SECURE) else None
        return Found(url=url, token=token) if member is None else _found_joined(url, member, token, side)
    if here is not None:
        return _found_here(here, token, state, side)
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


def _found_here(here: ServeFile, token: str, state: str, side: Side) -> Found:
    shown = token or here.token()
    if not here.ca_file:
        return Found(url=here.url, token=shown, is_here=True)
    # Machines of its own home join it like any other: by their certificate.
    member = read_joined(state, Side.WORKER) if side is Side.WORKER else None
    if member is not None and member.fingerprint == _fingerprint(here.ca_file):
        return Found(url=here.url, token="", identity=member.identity, name=member.name, is_here=True)
    return Found(url=here.url, token=shown, identity=FleetIdentity(ca_file=here.ca_file), is_here=True)


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
