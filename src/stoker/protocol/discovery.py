"""Find the coordinator of a command or worker: its address, its CA, and the credentials to send.

`state/serve.json` is the coordinator of this home. `state/joined/worker.json` and `operator.json` are the fleets that
this machine, or a user on it, has joined. Beside them are the fleet's CA, a machine's certificate with its key (one
file, replaced in one step) and a user's token, readable by their owner only. The record that names them is written
last, so an interrupted join leaves what was there before.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

from stoker.core.errors import BadInput, Damaged, LocalFile, NoCoordinator, StokerError
from stoker.core.frozen import changed, fields_of, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import Role
from stoker.host.durable import read_regular, read_secret, translated, write_file
from stoker.host.folders import make_state
from stoker.host.http.exchange import FleetIdentity
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, mine

NAME = "serve.json"
LAST_NAME = "served.json"
"""The same for the coordinator that stopped last."""
STARTING_NAME = "starting.json"
"""Which process is starting a coordinator; removed once it listens."""
TOKEN_NAME = "operator.token"  # noqa: S105 - the file's name
_LARGEST_BYTES = 64 * 1024


@frozen
class ServeFile:
    """`state/serve.json`: where the coordinator of this home listens. Commands here find it without set-up.

    The coordinator writes it once it listens; the file is valid as long as that process lives. Commands of the same
    user connect to its Unix socket, without a token. The operator's token is in its own file beside it, mode 600, for
    requests over TCP.
    """

    url: str
    owner: ProcessIdentity
    token_file: str = ""
    """File of the operator's token; empty: only the environment has it."""
    socket: str = ""
    """Unix socket for commands of the same user."""
    version: str = ""
    ca_file: str = ""
    """The fleet's CA if it uses TLS; clients trust only this CA."""

    def write(self, state: str) -> None:
        """Write the file into the state folder."""
        body = {"v": 1, **fields_of(self), "owner": self.owner.to_dict()}
        write_file(os.path.join(state, NAME), dumps(body, indent=1).encode())


def withdraw(state: str) -> None:
    """Rename our own file when we stop: the last coordinator's address remains known."""
    found = read_serve_file(state)
    if found is not None and found.owner == mine():
        with suppress(OSError):
            os.replace(os.path.join(state, NAME), os.path.join(state, LAST_NAME))


def announce_start(state: str) -> None:
    """Record that this process is starting the coordinator of this home: commands wait for it."""
    make_state(state)
    write_file(os.path.join(state, STARTING_NAME), dumps(mine().to_dict()).encode())


def withdraw_start(state: str) -> None:
    """Remove the record of `announce_start`."""
    with suppress(OSError):
        os.unlink(os.path.join(state, STARTING_NAME))


def is_starting(state: str) -> bool:
    """Return True if a process is starting the coordinator of this home."""
    try:
        raw = loads(read_regular(os.path.join(state, STARTING_NAME), _LARGEST_BYTES))
        return is_alive(ProcessIdentity.from_dict(raw)) is Liveness.ALIVE
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def read_serve_file(state: str, name: str = NAME) -> ServeFile | None:
    """Return the file of this home's coordinator, running or not; None if there is none."""
    try:
        raw = loads(read_regular(os.path.join(state, name), _LARGEST_BYTES))
        others = {name: str(raw.get(name, "")) for name in ("token_file", "socket", "version", "ca_file")}
        return ServeFile(url=str(raw["url"]), owner=ProcessIdentity.from_dict(raw["owner"]), **others)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def living_coordinator(state: str) -> ServeFile | None:
    """Return this home's coordinator if it runs on this machine now."""
    found = read_serve_file(state)
    return found if found is not None and is_alive(found.owner) is Liveness.ALIVE else None


FOLDER = "joined"


class MembershipKind(StrEnum):
    """The kind of member that this home is: a machine or a user."""

    WORKER = "worker"
    OPERATOR = "operator"

    @classmethod
    def of(cls, role: Role) -> MembershipKind:
        """Return the kind of member for a role."""
        return cls.WORKER if role is Role.WORKER else cls.OPERATOR


@frozen
class Membership:
    """One fleet that this home belongs to, and under which name."""

    url: str
    """`https://HOST:PORT` at the time of joining."""
    name: str
    """Of the machine in the fleet, or of the token."""
    role: Role
    ca_file: str = ""
    certificate_file: str = ""
    """Certificate and key of a machine."""
    token_file: str = ""
    """Token of a user."""
    fingerprint: str = ""
    """SHA-256 of the CA."""
    joined_s: float = 0.0
    expires_s: float | None = None
    """When the certificate or token expires, as known at the time of joining."""
    server_name: str = ""
    """The coordinator's host name in its certificate, if a relay has the address of `url`; empty: that host."""

    @property
    def side(self) -> MembershipKind:
        return MembershipKind.of(self.role)

    @property
    def identity(self) -> FleetIdentity:
        """The CA to trust and the certificate to send."""
        return FleetIdentity(ca_file=self.ca_file, certificate_file=self.certificate_file, server_name=self.server_name)

    def token(self) -> str:
        """Read the user's token; empty for a machine. Raises `LocalFile`."""
        return _read_secret(self.token_file).decode().strip() if self.token_file else ""


def read_joined(state: str, side: MembershipKind) -> Membership | None:
    """Return the fleet that was joined; None if none was.

    Raises `LocalFile` if others may read the secrets, and `Damaged` if the record is invalid.
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
        hint = "run `stoker join CODE@HOST --again` to write it again"
        raise Damaged(f"{path} is not a valid record of a joined fleet", hint=hint, path=path) from None
    for secret in filter(None, (found.certificate_file, found.token_file)):
        _read_secret(secret)
    return found


def write_joined(
    state: str, member: Membership, *, ca_pem: str, certificate_pem: str = "", key_pem: str = "", token: str = ""
) -> Membership:
    """Store a membership and its secrets, readable by us only, and return it with the files' paths.

    Secrets are written first, the record last; then the files of an earlier record are removed.
    """
    folder = make_folder(state)
    # Named by their CA: until the record names the new files, the old ones are complete.
    stem = os.path.join(folder, f"{member.side}-{member.fingerprint[:12]}")
    made = changed(
        member,
        ca_file=f"{stem}.ca.pem",
        certificate_file=f"{stem}.pem" if certificate_pem else "",
        token_file=f"{stem}.token" if token else "",
    )
    write_file(made.ca_file, ca_pem.encode(), mode=0o600)
    if made.certificate_file:
        write_certificate(made.certificate_file, certificate_pem, key_pem)
    if made.token_file:
        write_file(made.token_file, f"{token}\n".encode(), mode=0o600)
    write_file(_record(state, made.side), dumps(_to_dict(made), indent=1).encode(), mode=0o600)
    _remove_others(folder, made)
    return made


def make_folder(state: str) -> str:
    """Create the folder of memberships, for our user only, and return its path."""
    folder = os.path.join(state, FOLDER)
    make_state(state)
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
    return folder


def write_certificate(path: str, certificate_pem: str, key_pem: str) -> None:
    """Replace a machine's certificate and key in one step. Raises `Damaged` if they do not belong together."""
    both = f"{certificate_pem.strip()}\n{key_pem.strip()}\n".encode()
    _judge_pair(path, both)
    write_file(path, both, mode=0o600)


def _record(state: str, side: MembershipKind) -> str:
    return os.path.join(state, FOLDER, f"{side}.json")


def _remove_others(folder: str, made: Membership) -> None:
    kept = {made.ca_file, made.certificate_file, made.token_file}
    with suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(f"{made.side}-") and path not in kept:
                os.unlink(path)


def _judge_pair(path: str, both: bytes) -> None:
    """Check a certificate and its key before they replace others: with a wrong pair the machine could not reconnect."""
    import ssl  # noqa: PLC0415 - finding a coordinator needs none of it

    trial = f"{path}.trial"
    write_file(trial, both, mode=0o600)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(trial)
    except ssl.SSLError:
        raise Damaged("the coordinator sent a certificate that does not match this machine's key") from None
    finally:
        os.unlink(trial)


def _read_secret(path: str) -> bytes:
    try:
        return read_secret(path, _LARGEST_BYTES)
    except OSError as error:
        hint = "run `stoker join CODE@HOST --again` to write it again"
        raise LocalFile(f"{path} can't be read: {error.strerror}", hint=hint, path=path) from None


def _to_dict(membership: Membership) -> dict[str, Any]:
    files = {name: os.path.basename(getattr(membership, name)) for name in _FILES}
    return {"v": 1, **fields_of(membership), "role": str(membership.role), **files}


def _from_dict(raw: dict[str, Any], folder: str) -> Membership:
    # Names, not paths: a moved home still works, and a record cannot point outside of the folder.
    files = {name: os.path.join(folder, os.path.basename(raw[name])) if raw[name] else "" for name in _FILES}
    expires_s = raw.get("expires_s")
    return Membership(
        url=str(raw["url"]),
        name=str(raw["name"]),
        role=Role(raw["role"]),
        **files,
        fingerprint=str(raw.get("fingerprint", "")),
        joined_s=float(raw.get("joined_s", 0.0)),
        expires_s=None if expires_s is None else float(expires_s),
        server_name=str(raw.get("server_name", "")),
    )


_FILES = ("ca_file", "certificate_file", "token_file")


COORDINATOR = "STOKER_COORDINATOR"
OPERATOR_TOKEN = "STOKER_OPERATOR_TOKEN"  # noqa: S105 - the variable's name
DEFAULT_PORT = 7717
"""The default port of a coordinator."""
SECURE = "https://"
_MOST_BYTES = 64 * 1024


@frozen
class CoordinatorEndpoint:
    """A coordinator's address, the CA to trust there, and the token to send.

    In this order: the named one, the environment's, the one that serves this home, the fleet that was joined. On this
    machine a coordinator is reached over its Unix socket, where the kernel identifies the peer and no token is needed.
    A worker connects to other machines with its machine's certificate, and never reads or sends a user's token. A user
    never uses that certificate: the fleet's CA is taken from it, and a token is required.
    """

    url: str
    token: str
    identity: FleetIdentity | None = None
    """None: its certificate is checked against the system's CAs."""
    name: str = ""
    """The name under which this machine joined; empty: it has not joined."""
    is_here: bool = False
    """It serves this home."""

    @property
    def is_secure(self) -> bool:
        """True if it uses TLS, so that other machines may join."""
        return self.url.startswith(SECURE)


def find_coordinator(
    at: str, *, environment: Mapping[str, str], state: str, side: MembershipKind = MembershipKind.OPERATOR
) -> CoordinatorEndpoint | None:
    """Return the coordinator to use, or None if none is known. It is not contacted."""
    here = living_coordinator(state)
    token = environment.get(OPERATOR_TOKEN, "").strip() if side is MembershipKind.OPERATOR else ""
    named = at or environment.get(COORDINATOR, "").strip()
    if named:
        url = whole_address(named)
        if here is not None and here.url.rstrip("/") == url.rstrip("/"):
            return _found_here(here, token, environment, state, side)
        if not url.startswith(SECURE):
            return _found_plain(url, token, environment, state, side)
        member = _membership(state, side, url)
        return CoordinatorEndpoint(url=url, token=token) if member is None else _found_joined(url, member, token, side)
    if here is not None:
        return _found_here(here, token, environment, state, side)
    member = _membership(state, side)
    if member is None or (side is MembershipKind.OPERATOR and member.side is MembershipKind.WORKER and not token):
        return None
    return _found_joined(member.url, member, token, side)


def no_coordinator_known(state: str) -> NoCoordinator:
    """Return the error of a command that needs a coordinator if none is known or it is down."""
    if (gone := coordinator_gone(state)) is not None:
        hint = "start it: `stoker serve`; or name another one: --at URL or STOKER_COORDINATOR"
        return NoCoordinator(f"the coordinator of this home ({gone}) is not running", hint=hint)
    if (machine := machine_here(state)) is not None:
        hint = "`stoker machines invite --operator` at the coordinator, then here: stoker join --operator CODE@HOST"
        what = f"this machine is worker {machine.name} of {machine.url}; commands to that coordinator need a token"
        return NoCoordinator(what, hint=hint)
    hint = (
        "start one here: `stoker serve`; join one elsewhere: `stoker join CODE@HOST`; "
        "or name it: STOKER_COORDINATOR or --at URL (`stoker work`: --join URL)"
    )
    return NoCoordinator("no coordinator is known here", hint=hint)


def coordinator_gone(state: str) -> str | None:
    """Return the address of this home's coordinator if there was one and it does not run now."""
    found = read_serve_file(state) or read_serve_file(state, LAST_NAME)
    return found.url if found is not None and living_coordinator(state) is None else None


def whole_address(text: str) -> str:
    """Return an address with scheme and port: `desk` is `https://desk:7717`, `localhost` is `http://localhost:7717`.

    The default scheme is https, except for this computer.
    """
    if "://" in text:
        return text
    from stoker.host.http.exchange import is_this_computer  # noqa: PLC0415 - most commands name no address

    host, _, path = text.partition("/")
    has_port = host.rpartition(":")[2].isdigit() if not host.endswith("]") else False
    bare = host.rpartition(":")[0] if has_port else host
    scheme = "http" if is_this_computer(bare.strip("[]").lower()) else "https"
    return f"{scheme}://{host}{'' if has_port else f':{DEFAULT_PORT}'}{f'/{path}' if path else ''}"


def machine_here(state: str) -> Membership | None:
    """Return the fleet that this machine joined as a worker, if it did."""
    try:
        return read_joined(state, MembershipKind.WORKER)
    except StokerError:
        return None


def _found_here(
    here: ServeFile, token: str, environment: Mapping[str, str], state: str, side: MembershipKind
) -> CoordinatorEndpoint:
    if not here.ca_file:
        identity = FleetIdentity(sockets=_sockets(here.url, environment, here))
        return CoordinatorEndpoint(url=here.url, token=token, identity=identity, is_here=True)
    # A worker of the coordinator's own home uses its certificate like any other.
    member = read_joined(state, MembershipKind.WORKER) if side is MembershipKind.WORKER else None
    if member is not None and member.fingerprint == _fingerprint(here.ca_file):
        return CoordinatorEndpoint(url=here.url, token="", identity=member.identity, name=member.name, is_here=True)
    sockets = (here.socket,) if here.socket else ()
    return CoordinatorEndpoint(
        url=here.url, token=token, identity=FleetIdentity(ca_file=here.ca_file, sockets=sockets), is_here=True
    )


def _found_plain(
    url: str, token: str, environment: Mapping[str, str], state: str, side: MembershipKind
) -> CoordinatorEndpoint:
    """Return a coordinator without TLS: on this machine by its socket, as TCP does not identify the peer."""
    from stoker.host.http.exchange import is_this_computer, read_address, shown  # noqa: PLC0415 - as below

    origin = read_address(url).origin
    if is_this_computer(origin.host):
        last = read_serve_file(state) or read_serve_file(state, LAST_NAME)
        is_own = last is not None and last.url.rstrip("/") == url.rstrip("/")
        sockets = _sockets(url, environment, last if is_own else None)
        return CoordinatorEndpoint(url=url, token=token, identity=FleetIdentity(sockets=sockets))
    if side is MembershipKind.WORKER:
        hint = f"join it first: stoker join CODE@{origin.host}; then --join https://{origin.host_and_port}"
        raise BadInput(f"a worker connects to another machine over TLS only, not to {shown(url)}", hint=hint)
    return CoordinatorEndpoint(url=url, token=token)


def _sockets(url: str, environment: Mapping[str, str], known: ServeFile | None) -> tuple[str, ...]:
    """Return possible sockets of a coordinator on this machine, best first."""
    from stoker.host.http.exchange import read_address  # noqa: PLC0415 - as below

    origin = read_address(url).origin
    recorded = (known.socket,) if known is not None and known.socket else ()
    return tuple(dict.fromkeys((*recorded, *socket_paths(origin.host, origin.port, environment))))


def _found_joined(url: str, member: Membership, token: str, side: MembershipKind) -> CoordinatorEndpoint:
    """Return the endpoint with the member's credentials; they are sent only to a server signed by the fleet's CA."""
    if member.side is MembershipKind.OPERATOR:
        return CoordinatorEndpoint(url=url, token=token or member.token(), identity=member.identity, name=member.name)
    if side is MembershipKind.OPERATOR:
        return CoordinatorEndpoint(url=url, token=token, identity=FleetIdentity(ca_file=member.ca_file))
    return CoordinatorEndpoint(url=url, token="", identity=member.identity, name=member.name)


def _membership(state: str, side: MembershipKind, url: str = "") -> Membership | None:
    """Return the fleet that was joined: the one at `url` if there is one, else the first of this kind of member."""
    sides = (
        (MembershipKind.WORKER,) if side is MembershipKind.WORKER else (MembershipKind.OPERATOR, MembershipKind.WORKER)
    )
    found = [member for member in (read_joined(state, one) for one in sides) if member is not None]
    exact = [member for member in found if url and _is_same(member.url, url)]
    return next(iter(exact or found), None)


def _fingerprint(ca_file: str) -> str:
    """Return the fingerprint of this home's own CA; empty if it cannot be read."""
    from stoker.protocol.enrolment_messages import fingerprint  # noqa: PLC0415 - only a worker beside its coordinator asks

    try:
        return fingerprint(read_regular(ca_file, _MOST_BYTES).decode("ascii"))
    except (OSError, ValueError):
        return ""


def _is_same(one: str, other: str) -> bool:
    from stoker.host.http.exchange import origin  # noqa: PLC0415 - most commands name no address

    try:
        return origin(one) == origin(other)
    except BadInput:
        return False


SUFFIX = ".sock"
RUNTIME = "STOKER_RUNTIME"
_SESSIONS = "/run/user"
_TEMPORARY = "/tmp"  # noqa: S108 - the same for every process of a user, whatever TMPDIR says
_DEFAULT_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0", "::")  # noqa: S104 - only compared


def socket_folders(
    environment: Mapping[str, str], *, sessions: str = _SESSIONS, temporary: str = _TEMPORARY
) -> tuple[str, ...]:
    """Return the folders for sockets of this user: STOKER_RUNTIME alone if it is set.

    Every folder belongs to one user and is closed to all others (`host/sockets` checks that, and the listening
    process). The one in /tmp comes first since `/run/user/UID` disappears with the user's last session, which a
    coordinator may outlive; it is protected from programs that delete old files in /tmp. Another user can create the
    name in /tmp first; then it is not trusted, and the next folder is used.
    """
    named = environment.get(RUNTIME, "").strip()
    if named:
        return (os.path.abspath(os.path.expanduser(named)),)
    user = os.geteuid()
    session = os.path.join(sessions, str(user))
    found = [os.path.join(temporary, f"stoker-{user}")]
    if _is_private(session, user):
        found.append(os.path.join(session, "stoker"))
    return tuple(found)


def socket_name(host: str, port: int) -> str:
    """Return the name of a coordinator's socket, without its suffix: its port, with its host unless a default one."""
    bare = host.strip("[]").lower()
    return str(port) if bare in _DEFAULT_HOSTS else f"{bare}-{port}"


def socket_paths(host: str, port: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return possible sockets of a coordinator at an address of this machine, best first."""
    name = socket_name(host, port) + SUFFIX
    return tuple(os.path.join(folder, name) for folder in socket_folders(environment))


def _is_private(folder: str, user: int) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == user and not stat.S_IMODE(found.st_mode) & 0o077
