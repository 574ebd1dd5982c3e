"""Many workers of one coordinator, as cheap as they can be.

A socket each, requests rendered before, answers searched for four numbers. Prints one JSON object: seconds, cycles,
what a claim took, and the CPU time of all who took part.

    python fleet_load.py URL --jobs 10000 --workers 50 --way started|direct

A cycle is a claim that grants one job, a start, and a finish with a result that lies with the coordinator already;
the direct way leaves out the start. Every worker speaks on its own connection and has one request under way, so what
a claim takes is what it takes while all others press, too.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import http.client
import json
import os
import re
import resource
import secrets
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import procfs
import uvloop

from stoker import __version__
from stoker.core.capability import Capability
from stoker.core.job import job_id
from stoker.host.certificates import make_csr, make_key
from stoker.host.tls_contexts import client_context
from stoker.protocol.discovery import find_coordinator
from stoker.protocol.enrolment_messages import finish_proof, join_key, read_code

GIB = 1 << 30
ARCHIVE = b"the result of every job"
SHA = hashlib.sha256(ARCHIVE).hexdigest()
HEAD = "POST {path} HTTP/1.1\r\nHost: {host}\r\nX-Stoker-Protocol: 2\r\nContent-Length: {length}\r\n\r\n{body}"
GRANTED = re.compile(rb'"job":"([0-9a-f]{64})","attempt":(\d+),"epoch":(\d+),"generation":(\d+)')
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
A_TIME = 5_000
"""Jobs in one submission."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--token", type=Path, required=True, help="the operator's token file")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, help="stop after so many; default: every job")
    parser.add_argument("--first", type=int, default=0, help="the number of the first job")
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--way", choices=("started", "direct"), default="started")
    parser.add_argument("--server", type=int, required=True, help="its process, whose CPU time is told")
    parser.add_argument("--database", type=int, help="its database's, with all children")
    parser.add_argument("--ca", type=Path, help="speak TLS, trust this CA, and let every worker join first")
    parser.add_argument("--keys", type=Path, help="a folder for the workers' certificates")
    asked = parser.parse_args()
    coordinator = Coordinator(asked.url, asked.token.read_text().strip(), asked.ca)
    coordinator.upload()
    coordinator.submit(asked.jobs, asked.first)
    trusts: list[ssl.SSLContext | None] = [None] * asked.workers
    if asked.ca:
        trusts = [coordinator.enrol(number, asked.keys) for number in range(asked.workers)]
    print(json.dumps(uvloop.run(press(asked, trusts))))


class Coordinator:
    """What is asked of it before anything is timed."""

    def __init__(self, url: str, token: str, ca: Path | None) -> None:
        self._url = url
        self._token = token
        self._ca_pem = ca.read_text() if ca else ""
        self._trust = client_context(self._ca_pem) if ca else None

    def enrol(self, number: int, keys: Path) -> ssl.SSLContext:
        """Let a worker join with a code of its own, and give what it connects with."""
        name, code = f"w{number}", read_code(self.ask("/v1/invites", {})["code"])
        key, key_pem = join_key(code), make_key()
        csr_pem, nonce = make_csr(key_pem, name), secrets.token_hex(16)
        begun = self._join(number, "/v1/join/begin", {"id": code.id, "nonce": nonce})
        nonces = {"nonce": nonce, "server_nonce": begun["nonce"]}
        proof = finish_proof(key, name=name, csr_pem=csr_pem, **nonces)
        said = {"id": code.id, "name": name, "csr_pem": csr_pem, "proof": proof, **nonces}
        joined = self._join(number, "/v1/join/finish", said)
        path = keys / f"{name}.pem"
        path.write_text(joined["certificate_pem"] + key_pem)
        return client_context(self._ca_pem, certificate_file=str(path), key_file=str(path))

    def upload(self) -> None:
        begun = self.ask("/v1/uploads", {"digest": SHA, "size_bytes": len(ARCHIVE)})
        if not begun["is_known"]:
            self.send(f"/v1/uploads/{begun['id']}?offset=0", ARCHIVE, "PATCH")
            self.ask(f"/v1/uploads/{begun['id']}/finish", {})

    def submit(self, count: int, first: int = 0, make: Callable[[int], dict[str, object]] | None = None) -> None:
        for begin in range(first, first + count, A_TIME):
            numbers = range(begin, min(begin + A_TIME, first + count))
            self.ask("/v1/jobs", {"jobs": [(make or order)(number) for number in numbers], "submitter": "me@here"})

    def ask(self, path: str, body: object) -> Any:
        return self.send(path, json.dumps(body).encode(), "POST")

    def get(self, path: str) -> Any:
        """Return what a path answers."""
        return self.send(path, None, "GET")

    def send(self, path: str, body: bytes | None, method: str) -> Any:
        kind = "application/json" if method == "POST" else "application/octet-stream"
        headers = {"X-Operator-Token": self._token, "X-Stoker-Protocol": "2", "Content-Type": kind}
        request = urllib.request.Request(self._url + path, body, headers, method=method)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=600, context=self._trust) as answer:  # noqa: S310
            return json.loads(answer.read())

    def _join(self, number: int, path: str, body: object) -> Any:
        """Ask from an address of its own: from one alone codes may not be tried so quickly."""
        at = urllib.parse.urlsplit(self._url)
        source = (f"127.0.{1 + number // 250}.{1 + number % 250}", 0)
        line = http.client.HTTPSConnection(str(at.hostname), at.port, context=self._trust, source_address=source)
        line.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = line.getresponse()
        said = json.loads(answer.read())
        line.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {said}")
        return said


def order(number: int) -> dict[str, object]:
    """A job like no other, of the size that a real one has."""
    args = {"lr": 0.001 * (number + 1), "rounds": 200, "depth": 6, "data": "train.parquet", "seed": number}
    return {
        "id": job_id(recipe="tabular/gbt", schema_version=1, args=args),
        "name": "sweep",
        "number": number + 1,
        "label": f"lr={args['lr']}",
        "recipe": "tabular/gbt",
        "args": args,
        "identity": args,
        "requirements": {"ram_bytes": GIB},
    }


def socket_of(url: str) -> str:
    """Return the Unix socket of a coordinator on this machine, by which its workers reach it; empty: it speaks TLS."""
    if url.startswith("https://"):
        return ""
    found = find_coordinator(url, environment=os.environ, state=os.devnull)
    identity = found.identity if found is not None else None
    return next((path for path in (identity.sockets if identity else ()) if os.path.exists(path)), "")


async def connect(
    url: str, make: Callable[[str], asyncio.Protocol], trust: ssl.SSLContext | None = None
) -> asyncio.Protocol:
    """Connect a worker to a coordinator as a real one does: over its socket, or over TLS."""
    loop, host = asyncio.get_running_loop(), url.partition("://")[2]
    if path := socket_of(url):
        return (await loop.create_unix_connection(lambda: make(host), path))[1]
    name, _, port = host.partition(":")
    return (await loop.create_connection(lambda: make(host), name, int(port), ssl=trust))[1]


async def press(asked: argparse.Namespace, trusts: list[ssl.SSLContext | None]) -> dict[str, object]:
    """Let all workers say hello, then let them go; ends when every job has."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    left = Left(asked.cycles or asked.jobs, over)
    workers: list[Any] = []
    for number in range(asked.workers):

        def make(host: str, number: int = number) -> Worker:
            return Worker(number, host, left, is_started=asked.way == "started")

        workers.append(await connect(asked.url, make, trusts[number]))
    await asyncio.gather(*(worker.hello() for worker in workers))
    cpu_s, started_s = time.process_time(), time.perf_counter()
    server_s, database_s = procfs.used_s(asked.server), procfs.family_used_s(asked.database)
    for worker in workers:
        worker.claim()
    await over
    seconds = time.perf_counter() - started_s
    claims = sorted(took for worker in workers for took in worker.claims_s)
    for worker in workers:
        worker.close()
    return {
        "seconds": seconds,
        "executed": left.done,
        "cpu_seconds": time.process_time() - cpu_s,
        "server_cpu_s": procfs.used_s(asked.server) - server_s,
        "database_cpu_s": procfs.family_used_s(asked.database) - database_s,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "claim_p50_s": claims[len(claims) // 2],
        "claim_p99_s": claims[len(claims) * 99 // 100],
        "claim_max_s": claims[-1],
    }


class Left:
    """How many jobs have not ended."""

    def __init__(self, jobs: int, over: asyncio.Future[None]) -> None:
        self.jobs = jobs
        self.done = 0
        self.over = over

    def one(self) -> bool:
        """Count one more; say whether there are any that nobody finished."""
        self.done += 1
        if self.done >= self.jobs and not self.over.done():
            self.over.set_result(None)
        return self.done < self.jobs


class Worker(asyncio.Protocol):
    """One worker on one connection."""

    def __init__(self, number: int, host: str, left: Left, *, is_started: bool) -> None:
        self._name = f"w{number}"
        self._host = host
        self._is_started = is_started
        self._left = left
        self._asked = 0
        self._born = time.monotonic_ns()
        self._at_s = 0.0
        self._job = self._token = ""
        self._buffer = b""
        self._then: Callable[[bytes], None] = self._refuse
        self.claims_s: list[float] = []
        self._who = f'"worker":"{self._name}","incarnation":"incarnation-{self._born}"'
        result = f'"tree":"{SHA}","archive_sha256":"{SHA}","size_bytes":{len(ARCHIVE)}'
        self._finished = f',{result},"metrics":{{"loss":0.25,"accuracy":0.9}},"seconds":1.5}}'

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        said = LENGTH.search(self._buffer, 0, head)
        end = head + 4 + int(said[1] if said else 0)
        if len(self._buffer) >= end:
            answer, self._buffer = self._buffer[:end], self._buffer[end:]
            if not answer.startswith(b"HTTP/1.1 200"):
                self._refuse(answer)
            else:
                self._then(answer)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._left.over.done():
            self._left.over.set_exception(RuntimeError(f"{self._name} lost its connection"))

    async def hello(self) -> None:
        found = Capability(hostname=self._name, os="linux", arch="x86_64", cpu_cores=16,
                           ram_total_bytes=64 * GIB, ram_available_bytes=64 * GIB)  # fmt: skip
        facts = json.dumps(found.to_dict())
        heard = asyncio.get_running_loop().create_future()
        self._then = heard.set_result
        about = f'"slots":1,"version":"{__version__}","capability_digest":"{self._name}"'
        self._say("/v1/hello", f'{{{self._who},{about},"capability":{facts}}}')
        await heard

    def close(self) -> None:
        self._transport.close()

    def claim(self) -> None:
        self._asked += 1
        self._then = self._granted
        self._at_s = time.perf_counter()
        self._say("/v1/claims", f'{{"request_id":"{self._name}-{self._born}-{self._asked}",{self._who},"wait_s":20}}')

    def _granted(self, answer: bytes) -> None:
        found = GRANTED.search(answer)
        if found is None:
            if self._left.over.done() or b'"grants":[]' not in answer:
                return self._refuse(answer)
            return self.claim()
        self.claims_s.append(time.perf_counter() - self._at_s)
        self._job = found[1].decode()
        self._token = f'{{"attempt":{int(found[2])},"epoch":{int(found[3])},"generation":{int(found[4])}'
        if self._is_started:
            self._then = self._running
            return self._say(f"/v1/attempts/{self._job}/start", self._token + "}")
        return self._running(b"")

    def _running(self, _answer: bytes) -> None:
        self._then = self._settled
        self._say(f"/v1/attempts/{self._job}/finish", self._token + self._finished)

    def _settled(self, _answer: bytes) -> None:
        if self._left.one():
            self.claim()

    def _say(self, path: str, body: str) -> None:
        self._transport.write(HEAD.format(path=path, host=self._host, length=len(body), body=body).encode())

    def _refuse(self, answer: bytes) -> None:
        if not self._left.over.done():
            self._left.over.set_exception(RuntimeError(answer.decode(errors="replace")[-500:]))


if __name__ == "__main__":
    main()
