"""A user of this machine who attacks a coordinator: the standard library alone, run by its text as another user.

    with subprocess_of("ask", user=65534, target=…, requests=[…]) as attacker: …

Each process does what it is ordered on its standard input, in JSON, and says what came of it in lines of JSON.
A target is `{"kind": "tcp", "port": 7717}`, `{"kind": "tls", …}` or `{"kind": "unix", "path": …}`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any

SYSTEM_PYTHON = "/usr/bin/python3"
"""One that every user may start: that of the tests may lie in its owner's home."""
NOBODY = 65534
STALLED_S = 3.0
UNANSWERED_S = 60.0
_PIECE_BYTES = 64 * 1024
_POST = b"POST /v1/join/begin HTTP/1.1\r\nhost: %b\r\n"
_CHUNKED = _POST + b"transfer-encoding: chunked\r\n\r\n"
_SUBMIT = "POST /v1/jobs HTTP/1.1\r\nhost: {}\r\nx-operator-token: {}\r\ncontent-length: {}\r\n\r\n"
Target = Mapping[str, Any]


def endless(head: bytes, piece: bytes) -> Callable[[bytes], Iterator[bytes]]:
    """Return an attack: a beginning, and the same bytes after it for as long as they are taken."""

    def sent(host: bytes) -> Iterator[bytes]:
        yield head % host
        yield from repeat(piece * (_PIECE_BYTES // len(piece)))

    return sent


FLOODS = {
    "one header without end": endless(_POST + b"x: ", b"y"),
    "headers without end": endless(_POST, b"x: y\r\n"),
    "empty lines before a request": endless(b"%.0b", b"\r\n"),
    "trailers without end": endless(_CHUNKED + b"0\r\n", b"t: y\r\n"),
    "one trailer without end": endless(_CHUNKED + b"0\r\nt: ", b"y"),
    "a chunk extension without end": endless(_CHUNKED + b"1;", b"y"),
    "chunks of one byte": endless(_CHUNKED, b"1\r\ny\r\n"),
    "chunks with long extensions": endless(_CHUNKED, b"1;" + b"y" * 1000 + b"\r\nz\r\n"),
    "requests without waiting": endless(b"%.0b", b"GET /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"),
    "large requests without waiting": endless(
        b"%.0b", b"GET /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 16000 + b"\r\n\r\n"
    ),
    "words after an upgrade": endless(
        b"GET / HTTP/1.1\r\nhost: %b\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", b"y"
    ),
}
WHOLE = ("requests without waiting", "large requests without waiting")
"""Those of whole requests: all may be taken and answered, as long as they are not kept."""
DRIPS = {"a header": _POST + b"x: ", "a trailer": _CHUNKED + b"0\r\nt: ", "a chunk extension": _CHUNKED + b"1;"}
"""Beginnings of requests that are continued byte by byte."""


def host_of(target: Target) -> str:
    return "localhost" if target["kind"] == "unix" else f"127.0.0.1:{target['port']}"


def dial(target: Target, timeout_s: float = UNANSWERED_S) -> socket.socket:
    """Connect to a target; whom TLS shows there is not looked at."""
    if target["kind"] == "unix":
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(timeout_s)
        line.connect(target["path"])
        return line
    line = socket.create_connection(("127.0.0.1", target["port"]), timeout=timeout_s)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if target["kind"] == "tcp":
        return line
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if target.get("certificate"):
        context.load_cert_chain(target["certificate"])
    return context.wrap_socket(line)


def ask(target: Target, requests: Sequence[Mapping[str, Any]]) -> None:
    """Ask each request on a connection of its own; say status and answer, or 0 and the error."""
    for one in requests:
        body = base64.b64decode(one["base64"]) if "base64" in one else None
        if "json" in one:
            body = json.dumps(one["json"]).encode()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if one.get("token"):
            headers["X-Operator-Token"] = one["token"]
        connection = http.client.HTTPConnection(host_of(target), timeout=60)
        try:
            connection.sock = dial(target)
            connection.request(one["method"], one["path"], body, headers)
            answer = connection.getresponse()
            say([answer.status, answer.read().decode("utf-8", "replace")])
        except (OSError, http.client.HTTPException) as error:
            say([0, type(error).__name__])
        finally:
            connection.close()


def flood(
    target: Target, seconds: float, most_bytes: int, sorts: Sequence[str] = tuple(FLOODS), *, at_once: bool = False
) -> None:
    """Pour each sort for a while, on a new connection when one is cut; say how much was taken of the longest.

    One sort after the other, or all at once.
    """
    # Most attackers need no pool, and many are started.
    from concurrent.futures import ThreadPoolExecutor

    def one(sort: str) -> dict[str, Any]:
        until_s, longest_bytes, count = time.monotonic() + seconds, 0, 0
        while count == 0 or (time.monotonic() < until_s and longest_bytes < most_bytes):
            longest_bytes = max(longest_bytes, pour(target, FLOODS[sort](host_of(target).encode()), most_bytes))
            count += 1
        return {"sort": sort, "connections": count, "longest_bytes": longest_bytes}

    with ThreadPoolExecutor(len(sorts) if at_once else 1) as pool:
        for came in pool.map(one, sorts):
            say(came)


def pour(target: Target, pieces: Iterator[bytes], most_bytes: int) -> int:
    """Send pieces on one connection until it is cut, or not read for some time; return how many bytes were taken."""
    size_bytes = 0
    with suppress(OSError), dial(target, STALLED_S) as line:
        for piece in pieces:
            line.sendall(piece)
            size_bytes += len(piece)
            if size_bytes >= most_bytes:
                break
    return size_bytes


def drip(target: Target, heads: Sequence[str], seconds: float, each_s: float = 0.2) -> None:
    """Begin requests at once and continue them byte by byte, until a line is on standard input or time is over.

    Say `ready` first, then what each was answered; empty: nothing, and it was closed; null: it is still open.
    """
    lines = {dial(target): number for number, head in enumerate(heads)}
    answers: list[str | None] = [None] * len(heads)
    for line, number in lines.items():
        with suppress(OSError):
            line.sendall(heads[number].encode("latin-1"))
    say("ready")
    until_s = time.monotonic() + seconds
    while lines and time.monotonic() < until_s:
        heard, _, _ = select.select([sys.stdin, *lines], [], [], each_s)
        if sys.stdin in heard:
            break
        for line in list(lines):
            try:
                if line in heard:
                    answers[lines.pop(line)] = line.recv(12).decode("latin-1")
                    line.close()
                else:
                    line.sendall(b"y")
            except OSError:
                answers[lines.pop(line, 0)] = ""
    say(answers)


def submit(target: Target, tokens: Sequence[str], shape: str, size_bytes: int, count: int) -> None:
    """Submit large bodies, whose last byte is sent when all others have come; say what each was answered."""
    body = BODIES[shape](size_bytes)
    everybody = threading.Barrier(count)
    answers = [""] * count

    def one(number: int) -> None:
        line = dial(target)
        try:
            line.sendall(_SUBMIT.format(host_of(target), tokens[number % len(tokens)], len(body)).encode())
            line.sendall(memoryview(body)[:-1])
        except OSError as error:
            answers[number] = type(error).__name__
        with suppress(threading.BrokenBarrierError):
            everybody.wait(60)
        with suppress(OSError):
            line.sendall(body[-1:])
        with suppress(OSError):
            answers[number] = line.recv(12).decode("latin-1") or answers[number]
        line.close()

    senders = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    say(answers)


def _many(beginning: bytes, element: bytes, end: bytes) -> Callable[[int], bytes]:
    """Return what makes a body of a size: a beginning, an element as often as it fits, and an end."""
    return lambda size_bytes: beginning + b",".join([element] * (size_bytes // (len(element) + 1))) + end


BODIES: dict[str, Callable[[int], bytes]] = {
    "one long text": lambda size_bytes: b'{"jobs": [], "dry_run": true, "source": "%b"}' % (b"y" * size_bytes),
    "no JSON": lambda size_bytes: b"y" * size_bytes,
    "orders that are lists": _many(b'{"jobs":[', b"[]", b"]}"),
    "orders that are texts": _many(b'{"jobs":[', b'"%b"' % (b"y" * 1000), b"]}"),
    "one order with a long argument": lambda size_bytes: b'{"jobs":[{"args":{"a":"%b"}}]}' % (b"y" * size_bytes),
}


def watch(target: Target, every_s: float) -> None:
    """Ask for the health on new connections until a line is on standard input; say how long the answers took.

    Scheduled before all others, where that is permitted. No answer counts as `UNANSWERED_S`.
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    took_s: list[float] = []
    while sys.stdin not in select.select([sys.stdin], [], [], every_s)[0]:
        try:
            took_s.append(health_s(target))
        except (OSError, http.client.HTTPException):
            took_s.append(UNANSWERED_S)
    say(took_s)


def health_s(target: Target) -> float:
    """Return how long the answer to `/v1/health` took on a new connection, whose opening counts."""
    begun_s = time.perf_counter()
    with dial(target) as line:
        connection = http.client.HTTPConnection(host_of(target))
        connection.sock = line
        connection.request("GET", "/v1/health")
        if connection.getresponse().status != 200:
            raise http.client.HTTPException("it is not well")
        return time.perf_counter() - begun_s


def impostor(port: int, heard: str, path: str = "", mark: str = "", certificate: str = "") -> None:
    """Listen at a port and a Unix socket as a coordinator that hands out a job; keep whatever is heard in a file."""
    welcome = {"worker": "victim", "generation": 1, "heartbeat_s": 1, "lease_s": 9, "start_s": 9, "claim_wait_s": 1}
    grant = {"job": "0" * 64, "attempt": 1, "epoch": 1, "generation": 1, "name": "evil", "recipe": "command"}
    grant |= {"args": {"argv": ["touch", mark]}, "identity": {"argv": ["touch", mark]}, "folder": "/"}
    grant |= {"lease_s": 9, "start_s": 9}
    answers = {
        "/v1/hello": {**welcome, "server_s": 0, "version": "x"},
        "/v1/claims": {"grants": [grant], "generation": 1},
        "/v1/renewals": {"lease_s": 9, "heartbeat_s": 1, "generation": 1, "server_s": 0},
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
    if context is not None:
        context.load_cert_chain(certificate)

    def serve(taken: socket.socket) -> None:
        with open(heard, "ab", buffering=0) as log, suppress(OSError):
            if context is not None:
                # Whoever does not believe the certificate ends here.
                taken = context.wrap_socket(taken, server_side=True)
            log.write(b"connected\n")
            while data := taken.recv(65536):
                log.write(data)
                said = json.dumps(answers.get(data.split()[1].decode(), {})).encode()
                head = b"HTTP/1.1 200 OK\r\nx-stoker-protocol: 1\r\ncontent-type: application/json\r\n"
                taken.sendall(head + b"content-length: %d\r\n\r\n" % len(said) + said)

    def listen(one: socket.socket) -> None:
        one.listen(100)
        while True:
            threading.Thread(target=serve, args=(one.accept()[0],), daemon=True).start()

    tcp = socket.socket()
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.bind(("127.0.0.1", port))
    if path:
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(path)
        threading.Thread(target=listen, args=(unix,), daemon=True).start()
    with open(heard, "wb"):
        say("ready")
    listen(tcp)


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


def subprocess_of(do: str, *, user: int = NOBODY, before: Sequence[str] = (), **order: Any) -> subprocess.Popen[str]:
    """Start an attacker of another user, who gets nothing of this process but an order."""
    process = subprocess.Popen(
        [*before, SYSTEM_PYTHON, "-I", "-c", Path(__file__).read_text()],
        user=user,
        group=user,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.defpath},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"do": do, **order}) + "\n")
    process.stdin.flush()
    return process


def main() -> None:
    order = json.loads(sys.stdin.readline())
    acts: dict[str, Callable[..., None]] = {
        "ask": ask,
        "flood": flood,
        "drip": drip,
        "submit": submit,
        "watch": watch,
        "impostor": impostor,
    }
    acts[order.pop("do")](**order)


if __name__ == "__main__":
    main()
