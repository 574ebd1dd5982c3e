"""Sessions of web pages: a browser logs in with a token or a one-time code and gets a cookie.

Codes are valid once, for a minute; sessions for twelve hours. Only digests are kept, in memory: a restart ends all
sessions. A session never has a higher role than the token or code that began it, and ends when that token is revoked.
Beside its cookie each session has a key, which its page sends with every change: browsers send the cookie to servers at
all ports of this host, and the key to none of them. Thread-safe. Imports no library of the service, so that `stoker ui`
uses it, too.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Mapping

from stoker.coordinator.http.pages import PAGE_FIELD, PAGE_HEADER, PublicUrl
from stoker.core.clock import Clock
from stoker.core.errors import Forbidden, StokerError
from stoker.core.frozen import frozen
from stoker.core.leases import Principal, Role

LIFE_S = 12 * 3600.0
CODE_LIFE_S = 60.0
MOST_SESSIONS = 1000
MOST_CODES = 200
MOST_EACH = 50
"""Sessions, and codes, of one principal: with more, its own oldest ends, and not that of another."""
_CODE_BYTES = 16
_COOKIE_BYTES = 32
_LONGEST_COOKIES = 8192
_RANK = (Role.READ, Role.SUBMIT, Role.LAUNCH, Role.OPERATE, Role.ADMIN)


@frozen
class Login:
    """Who began a session, and by which token."""

    principal: Principal
    token_sha256: str = ""
    """Of a user's token, whose end ends the session; empty: the operator's, or a process of our own user."""


@frozen
class Session:
    """One logged-in browser."""

    login: Login
    expires_s: float
    """Wall-clock time, for the page."""
    ends_s: float
    """By the clock that also counts while the machine sleeps."""
    key_sha256: str
    """Digest of the page's key."""


@frozen
class NewSession:
    """A session that begins, with its secrets."""

    session: Session
    cookie: str
    """The value of `Set-Cookie`."""
    key: str
    """For the page, which sends it in `PAGE_HEADER`."""


@frozen
class _Code:
    login: Login
    ends_s: float


class Sessions:
    """The sessions and open codes of one server."""

    def __init__(self, clock: Clock, *, instance: str, is_secure: bool = False, prefix: str = "") -> None:
        """`instance` names the cookie: cookies of servers on other ports of this host have other names."""
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._codes: dict[str, _Code] = {}
        self._lock = threading.Lock()
        self._is_secure = is_secure
        self._path = f"{prefix}/"
        host_only = "__Host-" if is_secure and not prefix else ""
        self.cookie_name = f"{host_only}stoker-{_digest(instance.encode())[:8]}"

    def make_code(self, login: Login) -> str:
        """Return a code that begins one session within a minute."""
        code = secrets.token_urlsafe(_CODE_BYTES)
        with self._lock:
            _drop_oldest(self._codes, login.principal, MOST_CODES)
            self._codes[_digest(code.encode())] = _Code(login=login, ends_s=self._clock.boottime_s() + CODE_LIFE_S)
        return code

    def redeem(self, code: str) -> Login | None:
        """Return who made a code, once; None: it is unknown, used or expired."""
        with self._lock:
            # Any text, also one that is not valid Unicode.
            found = self._codes.pop(_digest(code.encode(errors="replace")), None)
        return found.login if found is not None and self._clock.boottime_s() < found.ends_s else None

    def begin(self, login: Login) -> NewSession:
        """Begin a session."""
        value, key = secrets.token_urlsafe(_COOKIE_BYTES), secrets.token_urlsafe(_COOKIE_BYTES)
        clock = self._clock
        session = Session(
            login=login,
            expires_s=clock.wall_s() + LIFE_S,
            ends_s=clock.boottime_s() + LIFE_S,
            key_sha256=_digest(key.encode()),
        )
        with self._lock:
            _drop_oldest(self._sessions, login.principal, MOST_SESSIONS)
            self._sessions[_digest(value.encode())] = session
        return NewSession(session=session, cookie=self._cookie(value, int(LIFE_S)), key=key)

    def find(self, headers: Mapping[bytes, bytes]) -> Session | None:
        """Return the session of a request's cookie, if it is valid."""
        value = self.cookie_value(headers)
        if value is None:
            return None
        with self._lock:
            found = self._sessions.get(_digest(value))
        return found if found is not None and self._clock.boottime_s() < found.ends_s else None

    def end(self, headers: Mapping[bytes, bytes]) -> str:
        """End the session of a request's cookie; return the value of `Set-Cookie` that deletes it."""
        value = self.cookie_value(headers)
        if value is not None:
            with self._lock:
                self._sessions.pop(_digest(value), None)
        return self._cookie("", 0)

    def cookie_value(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """Return our cookie of a request; None: it has none."""
        text = headers.get(b"cookie", b"")
        if not text or len(text) > _LONGEST_COOKIES:
            return None
        name = self.cookie_name.encode()
        for part in text.split(b";"):
            key, _, value = part.strip().partition(b"=")
            if key == name:
                return value
        return None

    def _cookie(self, value: str, life_s: int) -> str:
        secure = "; Secure" if self._is_secure else ""
        return f"{self.cookie_name}={value}; Path={self._path}; Max-Age={life_s}; HttpOnly; SameSite=Strict{secure}"


def judge_page_request(
    headers: Mapping[bytes, bytes], host: bytes, public: PublicUrl | None, session: Session | None = None
) -> None:
    """Raise `Forbidden` for a change that one of our own pages did not send.

    `Origin` and our header are required; of a `session`, with its key.
    """
    shown = headers.get(PAGE_FIELD)
    if shown is None:
        raise Forbidden(f"a change from a web page needs the header {PAGE_HEADER}", hint="use a token in scripts")
    origin = headers.get(b"origin", b"")
    if not is_own_origin(origin, host, public):
        hint = "open the page at the address that `stoker serve` printed, or start it with --public-url"
        raise Forbidden("a web page from another address may not change anything", hint=hint)
    if session is not None and not hmac.compare_digest(_digest(shown), session.key_sha256):
        raise Forbidden("the page does not have the key of its session", hint="log out, and log in again")


def is_own_origin(origin: bytes, host: bytes, public: PublicUrl | None) -> bool:
    """Return True if a page of this origin is ours: that of the request's `Host`, or the public one."""
    scheme, mark, place = origin.partition(b"://")
    if public is not None and (origin == public.origin.encode() or host.lower().decode("latin-1") in public.hosts):
        # Not the same name without TLS.
        return origin == public.origin.encode()
    return bool(mark) and scheme in (b"http", b"https") and bool(host) and place.lower() == host.lower()


def lower_role(held: Role, wanted: str) -> Role:
    """Return the role that a code gets: the wanted one, if the principal has it."""
    if not wanted:
        return held
    role = Role(wanted) if wanted in {one.value for one in _RANK} else None
    if role is None:
        raise Forbidden(f"there is no role {wanted[:40]!r}", hint="there are read, submit, operate, admin")
    if not Principal(name="", role=held).may(role):
        raise Forbidden(f"a code has at most your role {held.value}, not {role.value}")
    return role


def session_ended() -> StokerError:
    """Return the error for a cookie whose session is over."""
    return Forbidden("the session has ended: log in again", hint="run `stoker ui`, or log in with a token")


def _drop_oldest(held: dict[str, Session] | dict[str, _Code], principal: Principal, most: int) -> None:
    """Make room for one more: of a principal with many the oldest of its own, else the oldest of all."""
    own = [digest for digest, one in held.items() if one.login.principal == principal]
    if len(own) >= MOST_EACH:
        del held[own[0]]
    elif len(held) >= most:
        del held[next(iter(held))]


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
