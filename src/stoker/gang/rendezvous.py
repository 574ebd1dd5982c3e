"""Messages between the hosts of a rendezvous: one line of JSON each, read as untrusted input.

    host                                    client
      challenge {nonce}               →
                                      ←     hello {name, epoch, nonce, proof}
      welcome {proof} | refused {why} →
                                      ←     attending {ranks, devices}
      seated {hosts, place}           →
      published {place}               →
                                      ←     arrived {point}
      passed {point}                  →
                                      ←     failed {cause, ago_s}
      over {verdict}                  →
      bye                             ↔     bye

Each proves to the other that it knows the token, over both nonces, the epoch and the client's name. What comes after is
not sealed: this is for a private network, or a tunnel.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.core import jsontext
from stoker.core.clock import SystemClock
from stoker.core.digests import encode
from stoker.core.errors import BadGang, Cancelled, Diagnostic
from stoker.core.text import one_line, printable
from stoker.gang.rank_config import MOST_RANKS
from stoker.gang.rendezvous_types import HostFailure, HostPart, HostRanks, RendezvousOutcome

VERSION = 1
MOST_STRANGE_BYTES = 1024
"""Of whom nothing is known, no longer line is read."""
MOST_LINE_BYTES = 1 << 20
MOST_HOSTS = 256
MOST_NAME_CHARS = 64
LEAST_TOKEN_CHARS = 16
_MOST_DEVICE_CHARS = 128
_MOST_TEXT_CHARS = 2000
_MOST_TRACEBACK_CHARS = 16_384
_NONCE_CHARS = 64
_MOST_PORT = 65535
_HEX = frozenset("0123456789abcdef")
_MOST_COLLATERAL = 16
_WORDS = ("device", "phase", "how", "type", "text", "exit")

RendezvousMessage = dict[str, Any]


class BadLine(ValueError):
    """What came is not what this protocol says."""


def write(kind: str, **fields: object) -> bytes:
    """Return a line's bytes."""
    return jsontext.dumps({"kind": kind, **fields}).encode() + b"\n"


def read(data: bytes) -> RendezvousMessage:
    """Read a line. Raises `BadLine`."""
    try:
        line = jsontext.loads(data)
    except (ValueError, UnicodeDecodeError) as error:
        message = "not a line of JSON"
        raise BadLine(message) from error
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        message = "an object with a kind was expected"
        raise BadLine(message)
    return line


def proof(token: str, who: str, *, epoch: int, nonces: tuple[str, str], name: str) -> str:
    """Return what only one who knows the token can; `who` is the side that proves."""
    said = encode(["stoker meeting", VERSION, who, epoch, *nonces, name])
    return hmac.new(token.encode(), said, hashlib.sha256).hexdigest()


def is_proven(given: str, token: str, who: str, *, epoch: int, nonces: tuple[str, str], name: str) -> bool:
    """Return whether a proof holds."""
    wanted = proof(token, who, epoch=epoch, nonces=nonces, name=name)
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def text(line: Mapping[str, Any], key: str, most: int = _MOST_TEXT_CHARS) -> str:
    """Return a word of a line. Raises `BadLine`."""
    value = line.get(key)
    if not isinstance(value, str) or len(value) > most:
        message = f"{key} is not a text of at most {most} characters"
        raise BadLine(message)
    return value


def name_of(line: Mapping[str, Any], key: str = "name") -> str:
    """Return the name of a host. Raises `BadLine`."""
    name = text(line, key, MOST_NAME_CHARS)
    if not is_name(name):
        message = f"{key} is not the name of a host"
        raise BadLine(message)
    return name


def is_name(name: str) -> bool:
    """Return whether a host may be called that."""
    return 0 < len(name) <= MOST_NAME_CHARS and name.isprintable() and not name.isspace()


def nonce_of(line: Mapping[str, Any]) -> str:
    """Return a nonce. Raises `BadLine`."""
    nonce = text(line, "nonce", _NONCE_CHARS)
    if len(nonce) < _NONCE_CHARS // 2 or not set(nonce) <= _HEX:
        message = "the nonce is none"
        raise BadLine(message)
    return nonce


def number(line: Mapping[str, Any], key: str, most: int, least: int = 0) -> int:
    """Return a whole number. Raises `BadLine`."""
    value = line.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        message = f"{key} is not a number from {least} to {most}"
        raise BadLine(message)
    return value


def write_part(part: HostPart) -> RendezvousMessage:
    """Return what a host brings, as it travels."""
    return {"name": part.name, "ranks": part.ranks, "devices": list(part.devices)}


def read_part(line: Mapping[str, Any], name: str = "") -> HostPart:
    """Read what a host brings; `name` is the one that it has proven. Raises `BadLine`."""
    ranks = number(line, "ranks", MOST_RANKS, 1)
    devices = line.get("devices")
    if not isinstance(devices, list) or len(devices) != ranks or not all(isinstance(one, str) for one in devices):
        message = "devices are not one text for each rank"
        raise BadLine(message)
    shown = tuple(one_line(device, _MOST_DEVICE_CHARS) for device in devices)
    return HostPart(ranks=ranks, devices=shown, name=name or name_of(line))


def read_hosts(line: Mapping[str, Any]) -> tuple[HostPart, ...]:
    """Read all hosts. Raises `BadLine`."""
    hosts = line.get("hosts")
    if not isinstance(hosts, list) or not 1 <= len(hosts) <= MOST_HOSTS:
        message = "hosts are not a list of hosts"
        raise BadLine(message)
    parts = tuple(read_part(object_of(host)) for host in hosts)
    if sum(part.ranks for part in parts) > MOST_RANKS:
        message = f"all hosts together have more than {MOST_RANKS} ranks"
        raise BadLine(message)
    return parts


def write_cause(cause: HostFailure) -> RendezvousMessage:
    """Return a cause as it travels: cut to what every host takes."""
    facts = {key: value for key, value in cause.facts.items() if key in {*_WORDS, "rank", "after_s", "traceback"}}
    if isinstance(facts.get("traceback"), str):
        # The end says most.
        facts["traceback"] = facts["traceback"][-_MOST_TRACEBACK_CHARS:]
    for key in _WORDS:
        if isinstance(facts.get(key), str):
            facts[key] = facts[key][:_MOST_TEXT_CHARS]
    return {
        "host": cause.host,
        "message": cause.message[:_MOST_TEXT_CHARS],
        "code": cause.code,
        "hint": cause.hint[:_MOST_TEXT_CHARS],
        "is_echo": cause.is_echo,
        "missing": list(cause.missing),
        "facts": facts,
    }


def read_cause(line: Mapping[str, Any], host: str = "") -> HostFailure:
    """Read a cause; `host` is the one that it came from. Raises `BadLine`."""
    facts = object_of(line.get("facts"))
    read_facts: dict[str, Any] = {}
    if facts:
        read_facts = {key: printable(text(facts, key)) for key in _WORDS if facts.get(key) is not None}
        read_facts["exit"] = read_facts.get("exit")
        read_facts["rank"] = number(facts, "rank", MOST_RANKS)
        read_facts["after_s"] = seconds(facts, "after_s")
        read_facts["traceback"] = printable(text(facts, "traceback", _MOST_TRACEBACK_CHARS))
    return HostFailure(
        host=host or name_of(line, "host"),
        message=one_line(text(line, "message"), _MOST_TEXT_CHARS),
        code=one_line(text(line, "code"), MOST_NAME_CHARS),
        hint=one_line(text(line, "hint"), _MOST_TEXT_CHARS),
        is_echo=line.get("is_echo") is True,
        missing=_names(line.get("missing")),
        facts=read_facts,
    )


def write_verdict(verdict: RendezvousOutcome) -> RendezvousMessage:
    """Return a verdict as it travels."""
    dragged = [write_cause(one) for one in verdict.collateral[:_MOST_COLLATERAL]]
    return {"cause": write_cause(verdict.cause), "collateral": dragged}


def write_over(verdict: RendezvousOutcome, epoch: int) -> bytes:
    """Return the line that ends a rendezvous, with as many of those who were dragged along as it holds."""
    for kept in range(min(len(verdict.collateral), _MOST_COLLATERAL), 0, -1):
        shorter = RendezvousOutcome(cause=verdict.cause, collateral=verdict.collateral[:kept])
        if len(line := write("over", epoch=epoch, **write_verdict(shorter))) <= MOST_LINE_BYTES:
            return line
    return write("over", epoch=epoch, **write_verdict(RendezvousOutcome(cause=verdict.cause)))


def read_verdict(line: Mapping[str, Any]) -> RendezvousOutcome:
    """Read why a rendezvous is over. Raises `BadLine`."""
    collateral = line.get("collateral")
    if not isinstance(collateral, list) or len(collateral) > _MOST_COLLATERAL:
        message = "collateral is not a list of causes"
        raise BadLine(message)
    dragged = tuple(read_cause(object_of(one)) for one in collateral)
    return RendezvousOutcome(cause=read_cause(object_of(line.get("cause"))), collateral=dragged)


def seconds(line: Mapping[str, Any], key: str) -> float:
    """Return a duration. Raises `BadLine`."""
    value = line.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        message = f"{key} is not a duration"
        raise BadLine(message)
    return float(value)


def first_of(causes: Sequence[tuple[float, HostFailure]]) -> RendezvousOutcome:
    """Decide between causes, each with when it came about by the host's own clock.

    The first by time is the cause; one that only tells of a lost peer comes after all that say more.
    """
    ordered = [cause for _, cause in sorted(causes, key=lambda pair: (pair[1].is_echo, pair[0]))]
    return RendezvousOutcome(cause=ordered[0], collateral=tuple(ordered[1:]))


def is_place(place: str) -> bool:
    """Return whether a text is an address and a port."""
    host, _, port = place.rpartition(":")
    return (
        bool(host)
        and len(place) <= _MOST_DEVICE_CHARS
        and place.isascii()
        and place.isprintable()
        and (port.isdecimal() and 0 < int(port) <= _MOST_PORT)
    )


def _names(value: object) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or len(value) > MOST_HOSTS
        or not all(isinstance(one, str) and is_name(one) for one in value)
    ):
        message = "missing are not names of hosts"
        raise BadLine(message)
    return tuple(value)


def object_of(value: object) -> Mapping[str, Any]:
    """Return what has to be an object. Raises `BadLine`."""
    if not isinstance(value, dict):
        message = "an object was expected"
        raise BadLine(message)
    return value


# A connection between two hosts of a rendezvous: lines with a limit, each side with a deadline.

UNHEARD_S = 10.0
"""How long a host may be out of reach before its connection counts as lost."""
_READ_BYTES = 1 << 16


class RendezvousConnection:
    """One connection. One thread receives, any thread sends, any thread closes."""

    def __init__(self, connection: socket.socket, unheard_s: float = UNHEARD_S) -> None:
        self._socket = connection
        self._rest = bytearray()
        self._turn = threading.Lock()
        self._notice_silence(unheard_s)

    @property
    def own_address(self) -> str:
        return str(self._socket.getsockname()[0])

    def send(self, line: bytes) -> None:
        """Send a line. Raises `OSError` if the other side does not take it."""
        with self._turn:
            self._socket.sendall(line)

    def receive(self, *, most_bytes: int = MOST_LINE_BYTES, within_s: float | None = None) -> bytes | None:
        """Wait for a line; `None`: the other side has closed. Raises `OSError`, `TimeoutError`, `BadLine`."""
        clock = SystemClock()
        deadline_s = None if within_s is None else clock.monotonic_s() + within_s
        while (end := self._rest.find(b"\n", 0, most_bytes + 1)) < 0:
            if len(self._rest) > most_bytes:
                message = f"a line of more than {most_bytes} bytes"
                raise BadLine(message)
            left_s = None if deadline_s is None else deadline_s - clock.monotonic_s()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                return None
            self._rest += data
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def close(self) -> None:
        """Close it; a thread that receives returns. Twice is fine."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _notice_silence(self, unheard_s: float) -> None:
        """Let the kernel close the connection when the other host is unreachable."""
        quarter_s = max(1, round(unheard_s / 4))
        wanted = {"TCP_KEEPIDLE": quarter_s, "TCP_KEEPINTVL": quarter_s, "TCP_KEEPCNT": 3}
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for name, value in wanted.items():
                if hasattr(socket, name):
                    self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unheard_s * 1000))
            if hasattr(socket, "SO_SNDTIMEO"):
                limit = struct.pack("@ll", max(1, round(unheard_s)), 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


_LOOK_S = 0.1
_MOST_EPOCH = 2**53
_JOIN_S = 2.0


class TcpRendezvous:
    """A rendezvous over TCP, as both sides have it: one host, the first, holds it; the others are its clients.

        RendezvousHost(["lab1", "lab2"], at=("10.0.0.1", 29400), token=token, epoch=3)      on lab1
        RendezvousClient("lab2", at=("10.0.0.1", 29400), token=token, epoch=3)              on lab2

    A shared token proves who belongs here, both ways, and is never sent. Nothing is encrypted, neither here nor in what
    ranks say to each other later: use it on a private network, or through a tunnel.
    """

    def __init__(self, name: str, token: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self._token = token
        self._news = threading.Condition()
        self._host_ranks: HostRanks | None = None
        self._place = ""
        self._passed: set[str] = set()
        self._verdict: RendezvousOutcome | None = None
        self._wake: Callable[[], object] = bool
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def published(self) -> str:
        return self._place

    def has_passed(self, point: str) -> bool:
        return point in self._passed

    def verdict(self) -> RendezvousOutcome | None:
        return self._verdict

    def on_news(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def _tell_news(self) -> None:
        """Wake the threads that wait; the lock is not held."""
        with self._news:
            self._news.notify_all()
        self._wake()

    def _wait(self, is_there: Callable[[], bool], timeout_s: float, is_cancelled: Callable[[], bool]) -> bool:
        """Wait until something holds or the rendezvous is over; say whether that was in time. Raises `Cancelled`."""
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + timeout_s
        with self._news:
            while not is_there() and self._verdict is None:
                left_s = deadline_s - clock.monotonic_s()
                if left_s <= 0:
                    return False
                if is_cancelled():
                    raise Cancelled("the gang was cancelled")
                self._news.wait(min(left_s, _LOOK_S))
        return True

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name=f"rendezvous of {self.name}", daemon=True)
        with self._news:
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            thread.start()

    def _end_threads(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)


def check_words(names: Sequence[str], token: str, epoch: int) -> None:
    """Check the names, token and epoch of a rendezvous. Raises `BadGang`."""
    faults = [Diagnostic("host", f"{name!r} is not the name of a host") for name in names if not is_name(name)]
    if len(set(names)) != len(names) or not 1 <= len(names) <= MOST_HOSTS:
        faults.append(
            Diagnostic("hosts", f"{len(names)} names, of which {len(set(names))} differ", "name each host once")
        )
    if len(token) < LEAST_TOKEN_CHARS:
        faults.append(Diagnostic("token", f"has fewer than {LEAST_TOKEN_CHARS} characters", "openssl rand -hex 16"))
    if not 0 <= epoch <= _MOST_EPOCH:
        faults.append(Diagnostic("epoch", f"{epoch} is not the number of an attempt"))
    if faults:
        raise BadGang(f"invalid rendezvous: {'; '.join(map(str, faults))}", faults=tuple(faults))


def vanished(host: str, why: str) -> HostFailure:
    """Return the cause of a host that went without a word."""
    return HostFailure(
        host=host,
        message=f"{host} vanished ({why})",
        code="host_vanished",
        hint="check that its process and its network are up",
        missing=(host,),
    )
