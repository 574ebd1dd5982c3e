"""Who may ask what: decided from a request's method, path and headers alone, before anything of it is read.

On loopback reads and workers' routes are open, and what an operator changes needs the operator's token. Elsewhere
everything needs it. The `Host` header must be ours: a web page that points its own name at 127.0.0.1 is refused, and so
is any page's form that posts here.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping

from stoker.coordinator.service.speech import Refusal
from stoker.model.errors import BadInput
from stoker.model.fleet_errors import NotAllowed, VersionSkew
from stoker.model.frozen import frozen
from stoker.wire.protocol import OLDEST, TOKEN_HEADER, VERSION, VERSION_HEADER

_READS = frozenset({"GET", "HEAD"})
_OF_WORKERS = re.compile(
    r"/v1/(?:hello|claims|renewals|attempts/.*|uploads(?:/.*)?|job/claim|job/[^/]+/(?:heartbeat|complete|fail)|model/.*)"
)
_VERSION = VERSION_HEADER.lower().encode()
_TOKEN = TOKEN_HEADER.lower().encode()
_NEWEST = str(VERSION).encode()
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@frozen
class Rules:
    """What requests are judged by."""

    token: bytes
    is_open: bool
    """Reads and workers' routes need no token: it listens on loopback."""
    hosts: frozenset[bytes]
    """The values of `Host` that mean us; none: any, since whoever asks from afar may know us by many names."""


def is_loopback(host: str) -> bool:
    """Say whether a listening address can only be reached from this machine."""
    text = host.strip("[]")
    if text.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def rules_for(*, token: str, host: str, port: int) -> Rules:
    """Make the rules for an address that is listened at."""
    if not is_loopback(host):
        return Rules(token=token.encode(), is_open=False, hosts=frozenset())
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    names = {*_LOCAL_HOSTS, shown.lower()}
    ours = frozenset(spelt.encode() for name in names for spelt in (f"{name}:{port}", name))
    return Rules(token=token.encode(), is_open=True, hosts=ours)


def judge(rules: Rules, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
    """Let a request pass, or refuse it with the reason."""
    host = headers.get(b"host", b"")
    if rules.hosts and host not in rules.hosts and host.lower() not in rules.hosts:
        raise Refusal(
            NotAllowed(
                f"this coordinator is not called {host.decode('latin-1')!r}",
                hint="ask it by the address that `stoker serve` printed, such as http://127.0.0.1:7717",
            ),
            403,
        )
    spoken = headers.get(_VERSION)
    if spoken is not None and spoken != _NEWEST:
        _judge_version(spoken)
    is_read = method in _READS
    if not is_read and b"origin" in headers:
        _judge_origin(headers[b"origin"], host)
    if rules.is_open and (is_read or _OF_WORKERS.fullmatch(path)):
        return
    _judge_token(rules, headers.get(_TOKEN))


def _judge_version(spoken: bytes) -> None:
    text = spoken.decode("latin-1").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadInput(f"{VERSION_HEADER} is a whole number, not {text!r}", hint=f"this coordinator speaks {VERSION}")
    version = int(text)
    if version > VERSION:
        hint = "update the coordinator's machine: pip install --upgrade stoker, then start `stoker serve` again"
        raise VersionSkew(f"this coordinator speaks protocol {VERSION}, not {version} yet", hint=hint, ours=VERSION)
    if version < OLDEST:
        hint = "update this machine: pip install --upgrade stoker"
        raise VersionSkew(f"this coordinator no longer speaks protocol {version}", hint=hint, ours=VERSION)


def _judge_origin(origin: bytes, host: bytes) -> None:
    if origin.partition(b"://")[2] != host:
        raise Refusal(NotAllowed("a web page of another address may change nothing here"), 403)


def _judge_token(rules: Rules, given: bytes | None) -> None:
    if given is None:
        hint = (
            "on the coordinator's machine `stoker` finds the token by itself, as the same user; "
            "elsewhere set STOKER_OPERATOR_TOKEN"
        )
        raise Refusal(NotAllowed(f"this needs the operator's token ({TOKEN_HEADER})", hint=hint), 401)
    if not rules.token or not hmac.compare_digest(given, rules.token):
        hint = "the token lies in the file that `stoker serve` printed; a restart with another file changes it"
        raise Refusal(NotAllowed("that is not this coordinator's operator token", hint=hint), 403)
