"""Thousands of workers, each with a connection and a job that runs, that renew as often as the coordinator wishes.

    python fleet_renewals.py URL --workers 5000 --seconds 20

Prints one JSON object: how often they were to renew, how many renewals were answered, what one took, and the CPU time
of the coordinator meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import time
from typing import Any

import fleet_load
import procfs
import uvloop

BEAT = re.compile(rb'"heartbeat_s":([0-9.]+)')
AT_ONCE = 100


class Renewing(fleet_load.Worker):
    """A worker that claims and starts one job, and keeps it."""

    def prepare(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        self.ready: asyncio.Future[None] = loop.create_future()
        self.beat_s = 0.0
        self.took_s: list[float] = []
        self.claim()
        return self.ready

    def _running(self, _answer: bytes) -> None:
        self._then = lambda _: self.ready.set_result(None)
        self._say(f"/v1/attempts/{self._job}/start", self._token + "}")

    def renew(self) -> None:
        self._then = self._renewed
        self._at_s = time.perf_counter()
        lease = f'{{"job":"{self._job}",{self._token[1:]},"is_alive":true,"step":7,"of":100,"metrics":{{"loss":0.25}}}}'
        self._say(
            "/v1/renewals", f'{{{self._who},"leases":[{lease}],"measured":{{"ram_available_bytes":60000000000}}}}'
        )

    def _renewed(self, answer: bytes) -> None:
        found = BEAT.search(answer)
        if found is None or b'"orders":[]' not in answer:
            self._refuse(answer)
            return
        self.took_s.append(time.perf_counter() - self._at_s)
        self.beat_s = float(found[1])


async def main(asked: argparse.Namespace) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    left = fleet_load.Left(1, over)
    workers: list[Renewing] = []
    for begin in range(0, asked.workers, AT_ONCE):
        some: list[Any] = []
        for number in range(begin, min(begin + AT_ONCE, asked.workers)):

            def make(host: str, number: int = number) -> Renewing:
                return Renewing(number, host, left, is_started=False)

            some.append(await fleet_load.connect(asked.url, make))
        await _unless(over, asyncio.gather(*(worker.hello() for worker in some)))
        await _unless(over, asyncio.gather(*(worker.prepare(loop) for worker in some)))
        workers += some
    # The coordinator counts its machines once a second.
    await asyncio.sleep(2)
    workers[0].renew()
    while not workers[0].took_s:
        await _unless(over, asyncio.sleep(0.01))
    beat_s = workers[0].beat_s
    server_s, started_s = procfs.used_s(asked.server), time.perf_counter()
    sent = 0
    while (passed_s := time.perf_counter() - started_s) < asked.seconds:
        due = int(passed_s * len(workers) / beat_s)
        while sent < due:
            workers[(sent + 1) % len(workers)].renew()
            sent += 1
        await _unless(over, asyncio.sleep(0.005))
    seconds = time.perf_counter() - started_s
    used_s = procfs.used_s(asked.server) - server_s
    await asyncio.sleep(1)
    took = sorted(one for worker in workers for one in worker.took_s)
    if len(took) < sent:
        raise RuntimeError(f"{len(took)} of {sent} renewals were answered")
    over.cancel()
    return {
        "workers": len(workers),
        "heartbeat_s": beat_s,
        "seconds": seconds,
        "renewals": sent,
        "server_cpu_s": used_s,
        "p50_s": took[len(took) // 2],
        "p99_s": took[len(took) * 99 // 100],
    }


async def _unless(over: asyncio.Future[None], work: object) -> None:
    """Wait for work, unless something went wrong."""
    await asyncio.wait((asyncio.ensure_future(work), over), return_when=asyncio.FIRST_COMPLETED)  # type: ignore[call-overload]
    if over.done():
        over.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--workers", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--server", type=int, required=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(uvloop.run(main(parser.parse_args()))))
