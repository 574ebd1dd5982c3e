"""How quickly does 1 GiB get from a disk into an S3 store and back, hashed on the way, and what passes the coordinator?

Beside it, in turns: obstore alone, which hashes what it sends (the signature needs it) and nothing that it fetches;
and obstore with one SHA-256 of what it fetches, as every reader of Stoker has to compute it. A worker sends files of
its store, whose digests are known; a file of a folder, such as data of a submission, is hashed whole beside its parts.
The S3 store is a SeaweedFS of this machine, so it shares the processors with both. Every file that is sent is new.

Then at a proxy before the store: what is sent again after a kill -9 half-way; and claims, with 200 ms added to every
answer of the store and without, while trees of small files arrive at the coordinator, which puts them there.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import fleet
import harness
from fleet import Coordinator
from harness import Benchmark, Case, Figure, Row, Run, Runs, Side
from peers import Installed

from tests.servers.relay import Relay
from tests.servers.s3_proxy import S3Proxy
from tests.servers.seaweed import SeaweedServer, seaweed, why_not

SIZE_BYTES, QUICK_BYTES = 2**30, 2 * 2**20
PART_BYTES = 64 * 2**20
LANES = 3
ROUNDS = 3
VOLUMES = 400
AT_MOST = 1 / 0.85
"""At least 85 % of the rate."""
DELAY_S = 0.2
JOBS, WORKERS = 400, 8


def main() -> int:
    bench = harness.start("objects_s3", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    if why := why_not() or ("" if isinstance(stoker, Installed) else stoker.reason):
        bench.rows.append(Row(question="1 GiB and S3", against="obstore", ours=None, theirs=None, why_missing=why))
        return bench.finish()
    assert isinstance(stoker, Installed)
    folder = bench.home("store")
    with seaweed(volumes=VOLUMES, beside=folder) as server:
        lab = Lab(bench=bench, stoker=stoker, server=server, file=folder / "data.bin")
        lab.write()
        rates(lab)
        if not bench.quick:
            resumed(lab)
            claims(lab)
    return bench.finish()


@dataclass(kw_only=True)
class Lab:
    """What all measurements use."""

    bench: Benchmark
    stoker: Installed
    server: SeaweedServer
    file: Path
    sha256: str = ""

    @property
    def size_bytes(self) -> int:
        return QUICK_BYTES if self.bench.quick else SIZE_BYTES

    def write(self) -> None:
        """Write the file, with bytes that were not sent before."""
        hashed = hashlib.sha256()
        with self.file.open("wb") as file:
            for _ in range(self.size_bytes >> 20):
                block = os.urandom(1 << 20)
                hashed.update(block)
                file.write(block)
        self.sha256 = hashed.hexdigest()

    def environment(self, url: str, ca: Path | None, token: Path) -> dict[str, str]:
        return {
            "FLEET_URL": url,
            "FLEET_TOKEN": token.read_text().strip(),
            "FLEET_CA": str(ca or ""),
            "TREE_SHA256": self.sha256,
            "TREE_BYTES": str(self.size_bytes),
            "TREE_FILE": str(self.file),
        }

    @contextmanager
    def serving(self, name: str, *, listen: str = "127.0.0.1:0", endpoint: str = "") -> Iterator[Coordinator]:
        """Run a coordinator with a prefix of its own."""
        at = self.server.environment(endpoint=endpoint)
        options = ("--objects", self.server.new_url())
        with fleet.serving(self.stoker, self.bench.home(name), *options, listen=listen, environment=at) as found:
            yield found

    def side(self, way: str, told: dict[str, str]) -> Run:
        arguments = Case(count=1, way=way).arguments(self.bench.home(way))
        return harness.run_side(self.stoker, "stoker_tree.py", arguments, executed=self.size_bytes, environment=told)


def rates(lab: Lab) -> None:
    """Send and fetch, in turns with obstore alone."""
    bench, alone = lab.bench, _Alone(lab)
    with lab.serving("home", listen="0.0.0.0:0") as coordinator:
        port = urlsplit(coordinator.url).port
        assert port is not None
        with Relay(port) as relay:
            url = f"https://127.0.0.1:{relay.port}"

            def ours(way: str) -> Run:
                if way != "receive":
                    lab.write()
                return lab.side(way, lab.environment(url, coordinator.ca, coordinator.token))

            sides = [Side(name="stored", once=lambda: ours("stored")), alone.side("put")]
            sides += [] if bench.quick else [Side(name="send", once=lambda: ours("send"))]
            sent = bench.in_turns(sides, rounds=ROUNDS)
            sides = [Side(name="receive", once=lambda: ours("receive")), alone.side("hashed")]
            sides += [] if bench.quick else [alone.side("get")]
            got = bench.in_turns(sides, rounds=ROUNDS)
            passed_bytes = relay.came_bytes
    runs: Runs = {**sent, **got}
    bytes_moved = lab.size_bytes * sum(len(runs.get(way, [])) for way in ("stored", "send", "receive"))
    for question, way, peer, against in (
        ("1 GiB of a worker's store into S3", "stored", "put", "obstore"),
        ("1 GiB of a folder into S3, hashed whole beside its parts", "send", "put", "obstore"),
        ("1 GiB from S3 into a file, hashed and synced", "receive", "hashed", "obstore, hashed and synced"),
        ("1 GiB from S3 into a file, hashed and synced", "receive", "get", "obstore, synced, not hashed"),
    ):
        if way not in runs or peer not in runs:
            continue
        mine, theirs = runs[way], runs[peer]
        bench.rows += [
            Row(
                question=question,
                against=against,
                ours=harness.seconds_of(mine),
                theirs=harness.seconds_of(theirs),
                at_most=AT_MOST if way != "send" else None,
            ),
            Row(
                question=f"CPU time of the client: {question}",
                against=against,
                ours=harness.cpu_of(mine),
                theirs=harness.cpu_of(theirs),
            ),
        ]
    bench.rows.append(
        Row(
            question="bytes to and from the coordinator, of all that were moved",
            against="1 %",
            unit="bytes",
            ours=Figure.of([float(passed_bytes)]),
            theirs=Figure.of([bytes_moved / 100]),
            at_most=1.0,
        )
    )


class _Alone:
    """Sides by obstore alone, in a prefix of their own."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._url = lab.server.new_url()
        self._sha256 = ""

    def side(self, way: str) -> Side:
        return Side(name=way, once=lambda: self._once(way))

    def _once(self, way: str) -> Run:
        lab = self._lab
        if way == "put":
            self._sha256 = lab.sha256
        told = {**lab.server.environment(), "S3_URL": self._url, "TREE_FILE": str(lab.file)}
        arguments = Case(count=1, way=way).arguments(lab.bench.home(way))
        return harness.run_side(
            lab.stoker,
            "obstore_file.py",
            arguments,
            executed=lab.size_bytes,
            environment={**told, "ALONE_SHA256": self._sha256},
        )


def resumed(lab: Lab) -> None:
    """Kill a sender half-way; count what the second one sends."""
    with S3Proxy(lab.server.endpoint) as proxy, lab.serving("resumed", endpoint=proxy.endpoint) as coordinator:
        lab.write()
        told = lab.environment(coordinator.url, None, coordinator.token)
        arguments = Case(count=1, way="send").arguments(lab.bench.home("send"))
        words = [str(lab.stoker.python), str(harness.SIDES / "stoker_tree.py"), *arguments]
        with subprocess.Popen(words, env=harness.environment_with(told), stdout=subprocess.DEVNULL) as first:
            while proxy.put_bytes < lab.size_bytes // 2 and first.poll() is None:
                time.sleep(0.05)
            first.kill()
        # What the first one had sent to the end may still be on its way through the proxy.
        before = -1
        while before != proxy.received_bytes:
            before = proxy.received_bytes
            time.sleep(3.0)
        lab.side("send", told)
        again_bytes = proxy.received_bytes - before
    lab.bench.rows.append(
        Row(
            question="bytes that the second try sends after a kill half-way",
            against="half, and a part a lane",
            unit="bytes",
            ours=Figure.of([float(again_bytes)]),
            theirs=Figure.of([float(lab.size_bytes // 2 + LANES * PART_BYTES)]),
            at_most=1.0,
        )
    )


def claims(lab: Lab) -> None:
    """The slowest of a hundred claims, with a slow store and without, in turns."""
    found: dict[float, list[float]] = {0.0: [], DELAY_S: []}
    for turn in range(2 * ROUNDS):
        for delay_s in sorted(found, reverse=turn % 2 == 1):
            with S3Proxy(lab.server.endpoint) as proxy, lab.serving("claims", endpoint=proxy.endpoint) as coordinator:
                proxy.delay_s = delay_s
                found[delay_s].append(_claim_p99_s(lab, coordinator))
    lab.bench.rows.append(
        Row(
            question="p99 of a claim with 200 ms added to every answer of the store",
            against="without",
            ours=Figure.of(found[DELAY_S]),
            theirs=Figure.of(found[0.0]),
            at_most=1.2,
        )
    )


def _claim_p99_s(lab: Lab, coordinator: Coordinator) -> float:
    told = harness.environment_with(lab.environment(coordinator.url, None, coordinator.token))
    arguments = Case(count=1, way="steady").arguments(lab.bench.home("steady"))
    python = str(lab.stoker.python)
    load = [coordinator.url, "--token", str(coordinator.token), "--jobs", str(JOBS), "--workers", str(WORKERS)]
    with subprocess.Popen([python, str(harness.SIDES / "stoker_tree.py"), *arguments], env=told) as steady:
        try:
            words = [python, str(harness.SIDES / "fleet_load.py"), *load, "--server", str(coordinator.pid)]
            done = subprocess.run(words, env=told, capture_output=True, text=True, timeout=300, check=True)
            assert steady.poll() is None
        finally:
            steady.kill()
    return float(json.loads(done.stdout.strip().splitlines()[-1])["claim_p99_s"])


if __name__ == "__main__":
    sys.exit(main())
