"""Strangers who flood a real coordinator, over plain HTTP and over TLS: it stays small and answers others meanwhile."""

from __future__ import annotations

import json
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle, repeat
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stoker.core.clock import SystemClock
from stoker.core.job import job_id
from stoker.host.tls_contexts import client_context
from stoker.protocol.job_messages import MOST_JOBS_AT_ONCE, MOST_SUBMISSION_BYTES, MOST_SUBMISSION_VALUES
from tests.fault.real_fleet import RealFleet
from tests.lengths import examples
from tests.servers.attacker import DRIPS, FLOODS

CLOCK = SystemClock()
MOST_RSS_BYTES = 300 << 20
MOST_GROWTH_BYTES = 48 << 20
USUAL_HEALTH_S = 0.1
MOST_HEALTH_CPU_S = 0.2
"""Two threads of the coordinator may run at the same time, so twice what a health answer may take."""
FIRST_LOOK_CPU_S = 0.0008
"""At the first request of a connection, which waits then or is refused. With 500 at once that is over 100 ms."""
RECONNECT_S = 0.02
_PIECE_BYTES = 64 * 1024
_PATIENCE_S = 300.0
"""How long to wait for what is not measured: sixteen large submissions are read one after another."""


class Target(NamedTuple):
    """One coordinator process that is attacked."""

    pid: int
    port: int
    context: ssl.SSLContext | None
    token: bytes

    @property
    def host(self) -> bytes:
        return b"127.0.0.1:%d" % self.port

    @property
    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def dial(self) -> socket.socket:
        line = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.context.wrap_socket(line, server_hostname="127.0.0.1") if self.context else line

    def cpu_s(self) -> float:
        """Return the processor time that all threads of the coordinator have had."""
        # What `clock_getcpuclockid` gives: that of threads which have ended is in it, too.
        return time.clock_gettime((~self.pid << 3) | 2)

    def health_cpu_s(self) -> float:
        """Ask for the health, and return how much processor time the coordinator took until it had answered.

        That is what the answer waited for, however busy this machine is with other things.
        """
        with self.dial() as line:
            line.settimeout(10)
            before_s = self.cpu_s()
            line.sendall(b"GET /v1/health HTTP/1.1\r\nhost: %b\r\n\r\n" % self.host)
            assert line.recv(100).startswith(b"HTTP/1.1 200")
            return self.cpu_s() - before_s


@pytest.fixture(scope="module", params=["plain", "tls"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    is_tls = request.param == "tls"
    fleet = RealFleet(tmp_path_factory.mktemp(request.param), None, host="0.0.0.0" if is_tls else "127.0.0.1")
    try:
        serving = fleet.serve()
        told = serving.told()[0]
        token = Path(told["token_file"]).read_bytes().strip()
        context = client_context(Path(told["ca_file"]).read_text()) if is_tls else None
        made = Target(serving.pid, int(fleet.address.rpartition(":")[2]), context, token)
        for _ in range(3):
            made.health_cpu_s()
        yield made
    finally:
        fleet.end()


def attack(target: Target, sent: Callable[[bytes], Iterator[bytes]], is_over: threading.Event, most_bytes: int) -> int:
    """Send what an attack sends until it is over, on a new connection soon after one is cut; return the bytes sent."""
    size_bytes = 0
    while not is_over.is_set() and size_bytes < most_bytes:
        with suppress(OSError), target.dial() as line:
            for piece in sent(target.host):
                line.sendall(piece)
                size_bytes += len(piece)
                if is_over.is_set() or size_bytes >= most_bytes:
                    break
        is_over.wait(RECONNECT_S)
    return size_bytes


def drip(target: Target, lines: list[socket.socket]) -> Callable[[bytes], Iterator[bytes]]:
    """Return an attack of many connections that send a byte now and then, of a head, a trailer or an extension."""
    beginnings = cycle(DRIPS.values())

    def sent(host: bytes) -> Iterator[bytes]:
        while True:
            for line in lines:
                line.sendall(b"y")
            CLOCK.sleep(0.02)
            yield b""

    for line, beginning in zip(lines, beginnings, strict=False):
        line.sendall(beginning % target.host)
    return sent


def check_unharmed(target: Target, *attacks: Callable[[bytes], Iterator[bytes]], seconds: float) -> list[float]:
    """Attack for a while, check that the coordinator does not grow, and return what each health answer took of it."""
    before_bytes = target.rss_bytes
    is_over = threading.Event()
    attackers = [threading.Thread(target=attack, args=(target, one, is_over, 8 << 30)) for one in attacks]
    for one in attackers:
        one.start()
    took_s, sizes = [], []
    until_s = CLOCK.monotonic_s() + seconds
    try:
        while CLOCK.monotonic_s() < until_s:
            took_s.append(target.health_cpu_s())
            sizes.append(target.rss_bytes)
            CLOCK.sleep(0.01)
    finally:
        is_over.set()
        for one in attackers:
            one.join()
    assert max(sizes) < MOST_RSS_BYTES
    assert max(sizes) - before_bytes < MOST_GROWTH_BYTES
    return sorted(took_s)


@pytest.mark.timing
def test_connections_that_end_without_a_goodbye_are_not_kept(target: Target) -> None:
    for _ in range(20):
        target.health_cpu_s()
    before_bytes = target.rss_bytes
    for _ in range(150):
        # TLS is not ended here, the connection is just closed. Each that is kept takes 29 KB.
        target.health_cpu_s()
    assert target.rss_bytes - before_bytes < 2 << 20


@pytest.mark.timing
def test_floods_of_every_sort_at_once_neither_grow_nor_stall_a_coordinator(target: Target) -> None:
    lines = [target.dial() for _ in range(30)]
    took_s = check_unharmed(target, *FLOODS.values(), drip(target, lines), seconds=0.8)
    for line in lines:
        line.close()
    # Not the longest: what all the attackers have sent is read before one of them, too.
    assert took_s[len(took_s) // 2] < USUAL_HEALTH_S, took_s


@pytest.mark.timing
def test_large_submissions_that_never_end_do_not_grow_a_coordinator(target: Target) -> None:
    is_open, size_bytes = threading.Event(), 3 << 20

    def unfinished(host: bytes) -> Iterator[bytes]:
        head = b"POST /v1/jobs HTTP/1.1\r\nhost: %b\r\nx-operator-token: %b\r\ncontent-length: %d\r\n\r\n"
        yield head % (host, target.token, 2 * size_bytes)
        yield from repeat(b" " * _PIECE_BYTES, size_bytes // _PIECE_BYTES)
        # Most of it has come: it stays open, and is heard of now and then.
        while not is_open.wait(0.05):
            yield b" " * _PIECE_BYTES

    closing = threading.Timer(1.5, is_open.set)
    closing.start()
    took_s = check_unharmed(target, *[unfinished] * 12, seconds=1.0)
    is_open.set()
    assert took_s[len(took_s) // 2] < USUAL_HEALTH_S, took_s


# What comes over TLS is read by the same code.
@pytest.mark.parametrize("target", ["plain", pytest.param("tls", marks=pytest.mark.slow)], indirect=True)
def test_large_submissions_that_have_come_whole_are_in_memory_one_at_a_time(target: Target) -> None:
    count, size_bytes = examples(10, 16), 7 << 20
    is_answered = threading.Semaphore(0)
    body = submission(range(size_bytes // 60_000), dry_run=True, notes="y" * 60_000)
    everybody = threading.Barrier(count)

    def submit() -> None:
        with target.dial() as line:
            line.settimeout(_PATIENCE_S)
            head = b"POST /v1/jobs HTTP/1.1\r\nhost: %b\r\nx-operator-token: %b\r\ncontent-length: %d\r\n\r\n"
            line.sendall(head % (target.host, target.token, len(body)) + body[:-1])
            everybody.wait(_PATIENCE_S)
            line.sendall(body[-1:])
            if line.recv(100).startswith(b"HTTP/1.1 200"):
                is_answered.release()

    before_bytes, most_bytes = target.rss_bytes, 0
    senders = [threading.Thread(target=submit) for _ in range(count)]
    for one in senders:
        one.start()
    while any(one.is_alive() for one in senders):
        most_bytes = max(most_bytes, target.rss_bytes)
        CLOCK.sleep(0.001)
    assert all(is_answered.acquire(blocking=False) for _ in range(count))
    # The beginning of each, and copies of one: all of them together would take more than they have.
    assert most_bytes - before_bytes < count * size_bytes * 3 // 4


def submission(numbers: range, *, dry_run: bool = False, **args: Any) -> bytes:
    """Return a body that submits jobs of these numbers, with arguments that are no part of their ids."""
    jobs = [
        {
            "id": job_id(recipe="toy", schema_version=1, args={"number": number}),
            "name": f"job{number}",
            "recipe": "toy",
            "args": {"number": number, **args},
            "identity": {"number": number},
        }
        for number in numbers
    ]
    return json.dumps({"jobs": jobs, "dry_run": dry_run}, separators=(",", ":")).encode()


@pytest.mark.parametrize("count", [500, pytest.param(MOST_JOBS_AT_ONCE, marks=pytest.mark.slow)])
def test_whole_submissions_up_to_the_limits_neither_grow_nor_stall_a_coordinator(target: Target, count: int) -> None:
    size_bytes = (MOST_SUBMISSION_BYTES - 200_000) * count // MOST_JOBS_AT_ONCE
    bodies = [
        submission(range(count), lists=[[]] * (MOST_SUBMISSION_VALUES // MOST_JOBS_AT_ONCE * 2 // 5)),
        submission(range(count), notes="y" * (size_bytes // count - 300)),
        submission(range(count), notes="\U0001f600" * ((size_bytes // count - 300) // 12)),
    ]
    answers: list[bytes] = []

    def send() -> None:
        for body in bodies:
            with target.dial() as line:
                line.settimeout(60)
                head = b"POST /v1/jobs HTTP/1.1\r\nhost: %b\r\nx-operator-token: %b\r\ncontent-length: %d\r\n\r\n"
                line.sendall(head % (target.host, target.token, len(body)) + body)
                answers.append(line.recv(100))

    sender = threading.Thread(target=send)
    sender.start()
    sizes, held_s = [target.rss_bytes], []
    while sender.is_alive():
        held_s.append(target.health_cpu_s())
        sizes.append(target.rss_bytes)
    assert [answer.split()[1] for answer in answers] == [b"200"] * len(bodies)
    assert max(sizes) < MOST_RSS_BYTES
    assert max(held_s) < MOST_HEALTH_CPU_S, sorted(held_s)[-5:]


def many(beginning: bytes, element: bytes, end: bytes, size_bytes: int) -> Callable[[], bytes]:
    """Return what makes a body of about a size: a beginning, an element as often as it fits, and an end."""
    return lambda: beginning + b",".join([element] * (size_bytes // (len(element) + 1))) + end


# Made when they are sent: every test process reads this module.
BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "digests that are lists": ("/v1/contents/fetch", many(b'{"digests":[', b"[]", b"]}", 3900 << 10)),
    "a few digests that are lists": ("/v1/contents/missing", many(b'{"digests":[', b"[]", b"]}", 190 << 10)),
    "digests that are lists, spread out": (
        "/v1/contents/missing",
        many(b'{"digests":[', b"[%9s]" % b"", b"]}", 3900 << 10),
    ),
    "jobs to cancel that are lists": ("/v1/jobs/cancel", many(b'{"jobs":[', b"[]", b"]}", 3900 << 10)),
    "fields that are unknown": (
        "/v1/jobs/cancel",
        lambda: b'{"jobs":["%b"],%b}' % (b"0" * 64, b",".join(b'"%07x":1' % at for at in range(300_000))),
    ),
    "orders that are lists": ("/v1/jobs", many(b'{"jobs":[', b"[]", b"]}", 12 << 20)),
    "a few orders that are lists": ("/v1/jobs", many(b'{"jobs":[', b"[]", b"]}", 90 << 10)),
    "an order of lists": ("/v1/jobs", many(b'{"jobs":[{"args":{"a":[', b"[]", b"]}}]}", 12 << 20)),
    "an invitation with lists": ("/v1/join/begin", many(b'{"id":[', b"[]", b"]}", 60 << 10)),
}


@pytest.mark.timing
@pytest.mark.parametrize("sort", BODIES)
def test_a_body_of_many_small_values_neither_grows_nor_stalls_a_coordinator(target: Target, sort: str) -> None:
    path, make = BODIES[sort]
    body = make()
    head = b"POST %b HTTP/1.1\r\nhost: %b\r\nx-operator-token: %b\r\n"
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
    answers: list[bytes] = []

    def send() -> None:
        with target.dial() as line:
            line.settimeout(30)
            with suppress(OSError):
                line.sendall(head % (path.encode(), target.host, target.token, len(body)) + body)
            answers.append(line.recv(100))

    sender = threading.Thread(target=send)
    before_bytes, most_bytes, took_s = target.rss_bytes, 0, [target.health_cpu_s()]
    sender.start()
    while sender.is_alive():
        took_s.append(target.health_cpu_s())
        most_bytes = max(most_bytes, target.rss_bytes)
    assert answers[0].split()[1] in (b"413", b"422")
    assert most_bytes - before_bytes < MOST_GROWTH_BYTES, most_bytes
    assert most_bytes < MOST_RSS_BYTES
    assert max(took_s) < 3 * USUAL_HEALTH_S, took_s
    assert sorted(took_s)[len(took_s) // 2] < USUAL_HEALTH_S, took_s


_JOIN = b"POST /v1/join/%b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
RUBBISH = (
    (b"begin", b'{"id":"ABCD","nonce":"' + b"0" * 64 + b'"}'),
    (b"begin", b'{"id":[' + b"[]," * 600 + b"1]}"),
    (b"begin", b"x" * 1900),
    (b"finish", b'{"id":"ABCD","csr_pem":"' + b"A" * 8000 + b'"}'),
    # Slow: the rest of it never comes.
    (b"finish", b"{"),
)


@pytest.mark.parametrize("count", [10, 120, pytest.param(500, marks=pytest.mark.slow)])
def test_a_flood_of_joining_neither_grows_nor_stalls_a_coordinator(target: Target, count: int) -> None:
    lines = [target.dial() for _ in range(count)]
    requests: dict[socket.socket, bytes] = {}
    before_bytes, sizes, held_s = target.rss_bytes, [0], []
    with selectors.DefaultSelector() as waiting:
        for line, (word, body) in zip(lines, cycle(RUBBISH), strict=False):
            length = 20_000 if body == b"{" else len(body)
            requests[line] = _JOIN % (word, target.host, length) + body
            line.sendall(requests[line])
            line.setblocking(False)
            waiting.register(line, selectors.EVENT_READ)
        is_over = threading.Event()

        def hammer() -> None:
            while not is_over.is_set():
                for key, _ in waiting.select(0.1):
                    line: Any = key.fileobj
                    with suppress(OSError):
                        if line.recv(1 << 16):
                            line.sendall(requests[line])

        hammering = threading.Thread(target=hammer)
        hammering.start()
        until_s = CLOCK.monotonic_s() + 0.8
        while CLOCK.monotonic_s() < until_s:
            held_s.append(target.health_cpu_s())
            sizes.append(target.rss_bytes)
        is_over.set()
        hammering.join()
    for line in lines:
        line.close()
    assert max(sizes) < MOST_RSS_BYTES
    assert max(sizes) - before_bytes < MOST_GROWTH_BYTES
    assert sorted(held_s)[len(held_s) // 2] < USUAL_HEALTH_S, sorted(held_s)
    # The first answer of all comes after a look at every request that was sent before it.
    assert max(held_s) < max(MOST_HEALTH_CPU_S, count * FIRST_LOOK_CPU_S), sorted(held_s)[-5:]


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("sort", FLOODS)
def test_nor_does_one_of_them_in_half_a_minute(target: Target, sort: str) -> None:
    took_s = check_unharmed(target, FLOODS[sort], seconds=30.0)
    assert took_s[len(took_s) * 99 // 100] < USUAL_HEALTH_S, took_s[-20:]
