"""Authentication and authorisation: decided from a request's head and its connection, before its body is read.

A process of the coordinator's own user connects over its Unix socket, where the kernel identifies it: it may act as a
worker and, without a token, as an admin. Over TCP only `/v1/health` and joining are open, on loopback too: machines are
identified by certificates, users by tokens, and a table has the role that each route needs. The `Host` header of a
loopback address must be ours: a web page whose own name resolves to 127.0.0.1 is refused, and so is a form on any page
that posts here. The same holds for the Unix socket, which its user may forward to a port that pages reach; there any
port is accepted. Our own pages are open files; what they show needs a session (`sessions`), whose cookie is accepted
under names of this coordinator only, and for changes only with the page's own `Origin` and header.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

from fastapi import Depends, Query, Request

from stoker.coordinator.auth import RateLimiter, RateLimiterSettings, TrustState, token_digest
from stoker.coordinator.http.http_messages import Refusal
from stoker.coordinator.http.pages import PAGE_FIELD, PublicUrl, is_page
from stoker.coordinator.http.sessions import (
    Login,
    NewSession,
    Sessions,
    is_own_origin,
    judge_page_request,
    session_ended,
)
from stoker.core.clock import Clock
from stoker.core.errors import BadInput, Forbidden, NotFound, VersionSkew
from stoker.core.frozen import frozen, frozen_by_position
from stoker.core.leases import AttemptToken, Principal, Role, verified_name
from stoker.host.http.exchange import is_this_computer
from stoker.host.network import source_of
from stoker.host.tls_contexts import Certificate
from stoker.protocol.codec import OLDEST, TOKEN_HEADER, VERSION, VERSION_HEADER


@frozen_by_position
class Need:
    """What a route needs: a user's role, a machine, either of them, or nothing.

    A route that changes something and is not listed needs an admin: a forgotten route is closed, not open.
    """

    role: Role | None = None
    """The lowest role of a user; None: no user may."""
    is_workers: bool = False
    """A machine may, too."""
    is_open: bool = False
    """Open without credentials."""
    is_any_version: bool = False
    """For any version of the protocol."""
    is_for_anyone: bool = False
    """A page may ask without a session, too: it finds out that it has to log in."""


_OPEN = Need(is_open=True)
_WORKERS = Need(is_workers=True)
_WORKERS_OF_ANY_VERSION = Need(is_workers=True, is_any_version=True)
_SUBMITTERS_AND_WORKERS = Need(Role.SUBMIT, is_workers=True)
_READERS_AND_WORKERS = Need(Role.READ, is_workers=True)
_BY_ROLE = {role: Need(role) for role in Role if role is not Role.WORKER}

_SYSTEM_A = re.compile(r"/v1/(?:job/.*|model/.*|workers|manifest/reload)", re.DOTALL)
_SYSTEM_A_READS = frozenset({"/v1/jobs", "/v1/workers"})

# The first match applies.
_TABLE: tuple[tuple[str, str, Need], ...] = (
    ("POST", r"/v1/(?:hello|claims|renewals|sources|certificates/renew)", _WORKERS),
    ("POST|PUT", r"/v1/attempts/.*", _WORKERS),
    ("GET|HEAD", r"/v1/health", _OPEN),
    # The files of the web pages, which show nothing without a session.
    ("GET|HEAD", r"/(?:login|favicon\.ico|assets/.*)?", _OPEN),
    ("GET", r"/v1/sessions", Need(Role.READ, is_for_anyone=True)),
    ("POST", r"/v1/sessions", _OPEN),
    ("POST|DELETE", r"/v1/sessions(?:/codes)?", _BY_ROLE[Role.READ]),
    ("POST", r"/v1/join/(?:begin|finish)", _OPEN),
    ("POST", r"/v1/machines/[^/]+/report", _WORKERS_OF_ANY_VERSION),
    ("POST", r"/v1/machines/[^/]+/telemetry", _WORKERS),
    ("POST", r"/v1/job/(?:claim|[^/]+/(?:heartbeat|complete|fail))", _WORKERS),
    ("PUT", r"/v1/model/.*", _WORKERS),
    ("POST|PATCH", r"/v1/uploads(?:/.*)?", _SUBMITTERS_AND_WORKERS),
    ("POST", r"/v1/contents/fetch", _READERS_AND_WORKERS),
    ("POST", r"/v1/contents(?:/missing)?", _SUBMITTERS_AND_WORKERS),
    ("POST|PUT", r"/v1/trees/.*", _SUBMITTERS_AND_WORKERS),
    ("POST", r"/v1/objects/.*", _SUBMITTERS_AND_WORKERS),
    ("GET|HEAD", r"/v1/(?:objects|trees)/.*", _READERS_AND_WORKERS),
    # The number of pending jobs: for a worker that exits when none is left.
    ("GET", r"/v1/status", _READERS_AND_WORKERS),
    # The stored size of each file: a worker that mirrors its attempt continues from it.
    ("GET", r"/v1/jobs/[^/]+/files", _READERS_AND_WORKERS),
    # The machines that a machine may send trees to.
    ("GET", r"/v1/certificates/live", _READERS_AND_WORKERS),
    ("GET|HEAD", r"/v1/(?:tokens|hooks|history)(?:/.*)?", _BY_ROLE[Role.ADMIN]),
    ("GET|HEAD", r"/v1/(?:invites|exec)(?:/.*)?", _BY_ROLE[Role.OPERATE]),
    ("GET|HEAD", r".*", _BY_ROLE[Role.READ]),
    # It computes, and changes nothing.
    ("POST", r"/v1/simulate", _BY_ROLE[Role.READ]),
    # Of single jobs: the route itself needs more for a webhook of everything.
    ("POST", r"/v1/hooks", _BY_ROLE[Role.SUBMIT]),
    ("POST", r"/v1/jobs", _BY_ROLE[Role.SUBMIT]),
    ("POST", r"/v1/manifests", _BY_ROLE[Role.SUBMIT]),
    ("POST", r"/v1/jobs/[^/]+/again", _BY_ROLE[Role.SUBMIT]),
    # Of one's own jobs: the queue refuses jobs of others for this role.
    ("POST", r"/v1/jobs/(?:[^/]+/)?(?:cancel|requeue|priority)", _BY_ROLE[Role.SUBMIT]),
    ("POST", r"/v1/jobs/.*", _BY_ROLE[Role.OPERATE]),
    ("POST", r"/v1/job/[^/]+/(?:cancel|requeue)", _BY_ROLE[Role.OPERATE]),
    # Pausing is for launchers, too: it is their brake.
    ("POST", r"/v1/pools/(?:watch|[^/]+/(?:allocations|moves|pause|requests(?:/[^/]+/close)?))", _BY_ROLE[Role.LAUNCH]),
    ("POST", r"/v1/pools/[^/]+/(?:resume|stop)", _BY_ROLE[Role.OPERATE]),
    ("POST|DELETE", r"/v1/(?:machines|exec|invites|certificates)(?:/.*)?", _BY_ROLE[Role.OPERATE]),
    ("POST", r"/v1/(?:reload|manifest/reload|prune)", _BY_ROLE[Role.OPERATE]),
)
_COMPILED = tuple(
    (frozenset(methods.split("|")), re.compile(pattern, re.DOTALL), need) for methods, pattern, need in _TABLE
)


def need_of(method: str, path: str) -> Need:
    """Return what a request needs."""
    for methods, pattern, need in _COMPILED:
        if method in methods and pattern.fullmatch(path):
            return need
    return _BY_ROLE[Role.ADMIN]


def is_system_a(path: str) -> bool:
    """Return True for a route that only programs of system A use."""
    return _SYSTEM_A.fullmatch(path) is not None


def is_free_in_system_a(method: str, path: str) -> bool:
    """Return True for a route that system A's workers and scripts use without credentials."""
    return (is_system_a(path) and need_of(method, path).is_workers) or (method == "GET" and path in _SYSTEM_A_READS)


_READS = frozenset({"GET", "HEAD"})
_VERSION = VERSION_HEADER.lower().encode()
_TOKEN = TOKEN_HEADER.lower().encode()
_BEARER = b"bearer "
_NEWEST = str(VERSION).encode()
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]{1,5})?")
_SHOWN_HOST = 100
_WRONG_TOKENS = RateLimiterSettings(burst=20, each_s=3.0)

LOCAL_WORKER = Principal(name="", role=Role.WORKER)
"""A worker of the coordinator's own user, on its machine: it may use any name."""
LOCAL_ADMIN = Principal(name="", role=Role.ADMIN)
"""A process of the coordinator's own user on its machine; the name that its client claims is recorded."""
OWN_LAUNCHER = Principal(name="serve --launch", role=Role.LAUNCH)
"""The launcher that this coordinator starts beside itself."""
ANONYMOUS = Principal(name="", role=Role.READ, is_known=False)
"""The client of an open route."""
SYSTEM_A_WORKER = Principal(name="", role=Role.WORKER, is_known=False)
"""A worker of system A without a certificate: any process on this machine."""


@frozen
class Peer:
    """The other end of a connection."""

    address: str = ""
    certificate: Certificate | None = None
    """Signed by the fleet's CA and valid, as verified by TLS."""
    is_own_user: bool = False
    """A process of the coordinator's own user (or root) on this machine, as identified by the kernel."""


UNKNOWN = Peer()


@frozen
class Rules:
    """The constant parameters of access decisions."""

    token: bytes
    """The operator's token, from its file or the environment."""
    hosts: frozenset[bytes]
    """Accepted values of `Host` for a coordinator on loopback, without TLS. Empty: it listens elsewhere; any name."""
    launch_token: bytes = b""
    """Of the launcher that this coordinator starts beside itself; empty: it starts none."""
    names: frozenset[str] = frozenset()
    """Accepted hosts on its Unix socket, besides those of loopback; without ports."""
    system_a: bool = False
    """System A's routes are served; on loopback, without TLS, its workers and scripts need no credentials."""
    public: PublicUrl | None = None
    """The address of its pages behind a proxy (`--public-url`)."""

    @property
    def is_loopback(self) -> bool:
        """True if it listens on loopback, without TLS."""
        return bool(self.hosts)


def is_loopback(host: str) -> bool:
    """Return True if a listening address can only be reached from this machine."""
    text = host.strip("[]")
    if text.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def rules_for(*, token: str, host: str, port: int, names: Iterable[str] = (), public: PublicUrl | None = None) -> Rules:
    """Return the rules for a listening address; `names` are all `HOST:PORT` of the coordinator."""
    if not is_loopback(host):
        bare = frozenset((host.strip("[]").lower(), *map(_bare, names), *((public.host,) if public else ())))
        return Rules(token=token.encode(), hosts=frozenset(), names=bare, public=public)
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    local = {*_LOCAL_HOSTS, shown.lower()}
    ours = {spelt for name in local for spelt in (f"{name}:{port}", name)} | set(public.hosts if public else ())
    own_names = frozenset((public.host,) if public else ())
    return Rules(token=token.encode(), hosts=frozenset(name.encode() for name in ours), names=own_names, public=public)


Judge = Callable[[str, str, Mapping[bytes, bytes], Peer], Principal]
"""Returns the client of a request (method, path, headers, peer), or raises with the reason of a refusal."""


class Access:
    """Decides about requests. `on_use` is called with the id of every valid token."""

    def __init__(
        self,
        rules: Rules,
        *,
        standing: Callable[[], TrustState],
        clock: Clock,
        on_use: Callable[[str], None] = lambda _id: None,
        sessions: Sessions | None = None,
    ) -> None:
        """Without `sessions` no cookie is accepted."""
        self._sessions = sessions
        self._rules = rules
        self._standing = standing
        self._clock = clock
        self._on_use = on_use
        self._wrong_tokens = RateLimiter(_WRONG_TOKENS)

    def judge(self, method: str, path: str, headers: Mapping[bytes, bytes], peer: Peer = UNKNOWN) -> Principal:
        """Return the client of a request if it has access. Raises with the reason if not."""
        is_read = method in _READS
        need = need_of(method, path)
        self._judge_head(headers, peer, is_read=is_read, is_any_version=need.is_any_version)
        if is_page(path) or PAGE_FIELD in headers or self._has_cookie(headers):
            self._judge_page_host(headers, peer)
        if need.is_open:
            return ANONYMOUS
        if is_system_a(path) and not self._rules.system_a:
            hint = "start the coordinator with `stoker serve --system-a`; on loopback they are open to any process"
            raise NotFound("the routes of system A are off", hint=hint)
        if peer.is_own_user and (need.role is None or shown_token(headers) is None):
            return LOCAL_WORKER if need.is_workers else LOCAL_ADMIN
        if self._is_free_in_system_a(method, path, headers):
            return SYSTEM_A_WORKER if need.is_workers else ANONYMOUS
        if need.is_workers and (peer.certificate is not None or need.role is None):
            return self._machine(peer)
        if need.is_for_anyone and PAGE_FIELD in headers and not self._has_credentials(headers, peer):
            return ANONYMOUS
        return self._person(need, headers, peer, is_read=is_read)

    def _judge_head(
        self, headers: Mapping[bytes, bytes], peer: Peer, *, is_read: bool, is_any_version: bool = False
    ) -> None:
        hosts, host = self._rules.hosts, headers.get(b"host", b"")
        is_ours = host in hosts or host.lower() in hosts
        if not (is_ours or (self._is_named(host) if peer.is_own_user else not hosts)):
            raise _wrong_host(host)
        spoken = headers.get(_VERSION)
        if spoken is not None and spoken != _NEWEST and not is_any_version:
            _judge_version(spoken)
        if not is_read and b"origin" in headers:
            self._judge_origin(headers[b"origin"], host)

    def _judge_page_host(self, headers: Mapping[bytes, bytes], peer: Peer) -> None:
        """Refuse a browser that reaches a coordinator beyond loopback under a name that is not ours."""
        host = headers.get(b"host", b"")
        if not self._rules.hosts and not peer.is_own_user and not self._is_named(host):
            raise _wrong_host(host)

    def _judge_origin(self, origin: bytes, host: bytes) -> None:
        if not is_own_origin(origin, host, self._rules.public):
            hint = "open the page at the address that `stoker serve` printed, or start it with --public-url"
            raise Refusal(Forbidden("a web page from another address may not change anything", hint=hint), 403)

    def _has_cookie(self, headers: Mapping[bytes, bytes]) -> bool:
        return self._sessions is not None and self._sessions.cookie_value(headers) is not None

    def _has_credentials(self, headers: Mapping[bytes, bytes], peer: Peer) -> bool:
        """Return True if a request has a token, a certificate, or the cookie of a session that is not over."""
        session = self._sessions.find(headers) if self._sessions is not None else None
        has_session = session is not None and self._is_valid(session.login)
        return has_session or shown_token(headers) is not None or peer.certificate is not None

    def log_in(self, headers: Mapping[bytes, bytes], peer: Peer, *, token: str, code: str) -> NewSession:
        """Begin a session by a token or a code."""
        if self._sessions is None:
            raise NotFound("this coordinator has no web pages")
        judge_page_request(headers, headers.get(b"host", b""), self._rules.public)
        if code:
            login = self._sessions.redeem(code)
            if login is None or not self._is_valid(login):
                self._count_wrong(peer)
                hint = "a code is valid once, for 60 s: run `stoker ui --link` again"
                raise Refusal(Forbidden("the code is not valid", hint=hint), 403)
            return self._sessions.begin(login)
        given = token.encode(errors="replace")
        return self._sessions.begin(self.login_of(self._known(given, peer), given))

    def login_of(self, who: Principal, token: bytes | None) -> Login:
        """Return what a session remembers of a client that showed a token, or none."""
        digest = token_digest(token) if token is not None else ""
        return Login(principal=who, token_sha256=digest if digest in self._standing().tokens else "")

    def _is_valid(self, login: Login) -> bool:
        """Return True while the token that began a session is valid."""
        if not login.token_sha256:
            return True
        found = self._standing().tokens.get(login.token_sha256)
        return found is not None and found.is_live(self._clock.wall_s())

    def _of_session(self, headers: Mapping[bytes, bytes], *, is_read: bool) -> Principal | None:
        """Return the client of a session's cookie. Raises if the session is over, or another page sent the request."""
        if self._sessions is None or not self._has_cookie(headers):
            return None
        session = self._sessions.find(headers)
        if session is None or not self._is_valid(session.login):
            raise Refusal(session_ended(), 401)
        if not is_read:
            judge_page_request(headers, headers.get(b"host", b""), self._rules.public, session)
        return session.login.principal

    def _is_named(self, host: bytes) -> bool:
        """Return True if a `Host` is accepted on the Unix socket, with any port."""
        name = _bare(host.decode("latin-1"))
        return bool(name) and (name in self._rules.names or is_this_computer(name))

    def _is_free_in_system_a(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> bool:
        rules = self._rules
        is_served = rules.system_a and rules.is_loopback
        return is_served and is_free_in_system_a(method, path) and shown_token(headers) is None

    def _machine(self, peer: Peer) -> Principal:
        shown = peer.certificate
        if shown is None:
            hint = "run `stoker join CODE@HOST`; `stoker machines invite` at the coordinator prints the code"
            if self._rules.is_loopback:
                hint = "a worker of the same user on this machine uses the coordinator's Unix socket; update it"
            raise Refusal(Forbidden("this request needs a machine's certificate", hint=hint), 401)
        return self._standing().machine(shown.serial, shown.machine, self._clock.wall_s())

    def _person(self, need: Need, headers: Mapping[bytes, bytes], peer: Peer, *, is_read: bool) -> Principal:
        given = shown_token(headers)
        found = self._of_session(headers, is_read=is_read) if given is None else self._known(given, peer)
        if found is None:
            if peer.certificate is not None:
                machine = self._machine(peer).name
                raise Forbidden(f"{machine} is a machine: this request is for users", hint="use a user's token")
            hint = (
                "as the same user on the coordinator's machine none is needed (Unix socket); "
                "elsewhere join as an operator (`stoker join`), or set STOKER_OPERATOR_TOKEN"
            )
            raise Refusal(Forbidden(f"this request needs a token ({TOKEN_HEADER}, or Bearer)", hint=hint), 401)
        if need.role is None or not found.may(need.role):
            wanted = need.role or Role.WORKER
            hint = f"an admin can invite you: `stoker machines invite --operator --role {wanted.value}`"
            if need.role is None:
                hint = "this request is for machines, with their certificate"
            what = f"{found.name or 'this token'} has the role {found.role.value}; this request needs {wanted.value}"
            raise Forbidden(what, hint=hint, role=found.role.value, wanted=wanted.value)
        return found

    def _known(self, given: bytes, peer: Peer) -> Principal:
        rules, clock = self._rules, self._clock
        if rules.token and hmac.compare_digest(given, rules.token):
            return Principal(name="operator", role=Role.ADMIN)
        if rules.launch_token and hmac.compare_digest(given, rules.launch_token):
            return OWN_LAUNCHER
        found = self._standing().person(given, clock.wall_s())
        if found is None:
            self._count_wrong(peer)
            hint = "it may have expired or been revoked; on the coordinator's machine `stoker admin tokens` lists them"
            raise Refusal(Forbidden("the token is not valid at this coordinator", hint=hint), 403)
        self._on_use(found.id)
        return Principal(name=found.name, role=Role(found.role))

    def _count_wrong(self, peer: Peer) -> None:
        """Count a wrong token or code. Only wrong ones are limited: valid ones from the same address pass."""
        source, now_s = source_of(peer.address), self._clock.monotonic_s()
        self._wrong_tokens.check(source, now_s)
        self._wrong_tokens.spend(source, now_s)


def shown_token(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the token of a request, in either header."""
    given = headers.get(_TOKEN)
    if given is not None:
        return given
    authorization = headers.get(b"authorization", b"")
    is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
    return authorization[len(_BEARER) :].strip() if is_bearer else None


def _bare(host: str) -> str:
    """Return the host of `HOST` or `HOST:PORT` in lower case, without brackets; empty if it is neither."""
    found = _HOST.fullmatch(host.lower())
    return (found["v6"] or found["name"]) if found is not None else ""


def _judge_version(spoken: bytes) -> None:
    text = spoken.decode("latin-1").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadInput(f"{VERSION_HEADER}: {text!r} is not a whole number", hint=f"the current version is {VERSION}")
    version = int(text)
    if version > VERSION:
        hint = "update the coordinator's machine: pip install --upgrade stoker, then start `stoker serve` again"
        raise VersionSkew(f"this coordinator supports protocol {VERSION}, not yet {version}", hint=hint, ours=VERSION)
    if version < OLDEST:
        hint = "update this machine: pip install --upgrade stoker"
        raise VersionSkew(f"this coordinator no longer supports protocol {version}", hint=hint, ours=VERSION)


def _wrong_host(host: bytes) -> Refusal:
    hint = (
        "use the address that `stoker serve` printed, such as http://127.0.0.1:7717; "
        "behind a proxy start it with --public-url URL"
    )
    shown = host[:_SHOWN_HOST].decode("latin-1")
    return Refusal(Forbidden(f"{shown!r} is not a name of this coordinator", hint=hint), 403)


# The client of a request, for routes:
#
# async def cancel(self, ref: Ref, who: Who, request: ChangeRequest | None = None) -> Response:
# … CancelJobs(jobs=…, by=recorded(who, request.by))

PEER = "stoker.peer"
"""Key of the connection's `Peer` in a request's scope."""
PRINCIPAL = "stoker.principal"
STILL = "stoker.still"
_LONGEST = 200
_LOCAL_USER = "local user"


def _principal(request: Request) -> Principal:
    found: Principal = request.scope[PRINCIPAL]
    return found


def _still(request: Request) -> Callable[[], bool]:
    found: Callable[[], bool] = request.scope[STILL]
    return found


Who = Annotated[Principal, Depends(_principal)]
Still = Annotated[Callable[[], bool], Depends(_still)]
"""Returns True while the client still has access: for responses that never end."""


def recorded(who: Principal, claimed: str) -> str:
    """Return the name to record: the verified one, followed by the one that the client claims.

    A principal without a name is the operator of this home, whose user id the kernel has verified: `local user`. The
    name that its client claims is recorded instead, in a form that differs from a verified name
    (`core.leases.verified_name`).
    """
    if not who.name:
        name = f"{_LOCAL_USER} ({claimed})" if verified_name(claimed) else claimed.strip() or _LOCAL_USER
        return name[:_LONGEST]
    return f"{who.name} ({claimed})"[:_LONGEST] if claimed and claimed != who.name else who.name


def changes_only(who: Principal) -> str | None:
    """Return the user whose jobs a principal may change: itself, or with the role operate all (None)."""
    return None if who.may(Role.OPERATE) else who.name


def owner_of(who: Principal) -> str:
    """Return the owner of an upload or a body. All processes of the coordinator's own user have the same owner.

    All unknown clients have one owner together: with an owner each, they could use up all space.
    """
    if not who.is_known:
        return "unknown"
    if not who.name:
        return ""
    return f"{'machine' if who.role is Role.WORKER else 'person'} {who.name}"


# The lease token in the URL of a request that sends bytes:
#
# async def put(self, token: LeaseToken, …) -> Response:    /v1/attempts/{job}/…?attempt=1&epoch=2&generation=0

LAST = 2**53
"""The largest integer that every JSON reader keeps."""

Number = Annotated[int, Query(ge=1, le=2**31 - 1)]
"""Number of an attempt."""


def _token(
    job: str,
    attempt: Number,
    epoch: Annotated[int, Query(ge=1, le=LAST)],
    generation: Annotated[int, Query(ge=0, le=LAST)],
) -> AttemptToken:
    return AttemptToken(job=job, attempt=attempt, epoch=epoch, generation=generation)


LeaseToken = Annotated[AttemptToken, Depends(_token)]
