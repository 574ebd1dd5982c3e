"""Workers and an operator that change a coordinator's jobs at a steady pace, until stdin is closed.

    python screens_events.py URL --token FILE --workers 500 --events 100 --watched ID,ID

Each worker has one job: claimed, started, renewed with its progress half-way, finished or failed, and the next one. The
operator gives the watched jobs new priorities, a fifth of all events. A renewal is no event. Prints `running` once
every worker has its job; then one JSON object: how many events there were and the seconds they took, and when each new
priority was recorded, by job and priority.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

import fleet_load
import uvloop

OPERATORS_PART = 0.2
PER_JOB = 3
"""Events of one job: granted, started, finished."""
FAILS_EVERY = 20
AT_ONCE = 100
FAILED = '"cause":"user","message":"ValueError: loss is nan","seconds":1.5}'


class Paced(fleet_load.Worker):
    """A worker whose jobs last so long that all workers together keep the pace."""

    def prepare(self, number: int, lasts_s: float, part: float) -> asyncio.Future[None]:
        """Claim the first job; it ends after a part of its time, so that not all end at once."""
        self._loop = asyncio.get_running_loop()
        self._lasts_s = lasts_s
        self._ends_s = self._loop.time() + lasts_s * part
        self._jobs = number
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.claim()
        return self.ready

    def _running(self, _answer: bytes) -> None:
        self._then = self._under_way
        self._say(f"/v1/attempts/{self._job}/start", self._token + "}")

    def _under_way(self, _answer: bytes) -> None:
        if not self.ready.done():
            self.ready.set_result(None)
        now_s = self._loop.time()
        self._loop.call_at((now_s + self._ends_s) / 2, self._renew)

    def _renew(self) -> None:
        lease = f'{{"job":"{self._job}",{self._token[1:]},"is_alive":true,"step":{50 + self._jobs % 50},"of":100,'
        self._then = self._renewed
        self._say("/v1/renewals", f'{{{self._who},"leases":[{lease}"metrics":{{"loss":0.25}}}}],"measured":{{}}}}')

    def _renewed(self, _answer: bytes) -> None:
        self._loop.call_at(self._ends_s, self._end)

    def _end(self) -> None:
        self._ends_s += self._lasts_s
        self._jobs += 1
        if self._jobs % FAILS_EVERY:
            super()._running(b"")
        else:
            self._then = self._settled
            self._say(f"/v1/attempts/{self._job}/fail", f"{self._token},{FAILED}")

    def _say(self, path: str, body: str) -> None:
        if not self._left.over.done():
            super()._say(path, body)


async def main(asked: argparse.Namespace) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    left = fleet_load.Left(sys.maxsize, over)
    operator = fleet_load.Coordinator(asked.url, asked.token.read_text().strip(), None)
    operator.upload()
    per_s = asked.events * (1 - OPERATORS_PART) / PER_JOB
    workers: list[Any] = []
    for begin in range(0, asked.workers, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, asked.workers))
        some: list[Any] = [await fleet_load.connect(asked.url, _maker(number, left)) for number in numbers]
        await _unless(over, asyncio.gather(*(worker.hello() for worker in some)))
        lasts_s = asked.workers / per_s
        ready = (
            one.prepare(number, lasts_s, (number + 1) / asked.workers)
            for number, one in zip(numbers, some, strict=True)
        )
        await _unless(over, asyncio.gather(*ready))
        workers += some
    watched = [id for id in asked.watched.split(",") if id]
    first, began_s = await _newest(loop, operator), loop.time()
    print("running", flush=True)
    changing = loop.run_in_executor(None, sys.stdin.read)
    number = 0
    while not changing.done():
        due_s = began_s + number / (asked.events * OPERATORS_PART)
        await _unless(over, asyncio.wait((changing,), timeout=max(0.0, due_s - loop.time())))
        if watched and not changing.done():
            await loop.run_in_executor(
                None, _give, operator, watched[number % len(watched)], 1 + number // len(watched)
            )
        number += 1
    seconds, last = loop.time() - began_s, await _newest(loop, operator)
    over.set_result(None)
    for worker in workers:
        worker.close()
    return {"events": last - first, "seconds": seconds, "changed": _changes(operator, watched)}


def _maker(number: int, left: fleet_load.Left) -> Any:
    return lambda host: Paced(number, host, left, is_started=False)


def _give(operator: fleet_load.Coordinator, job: str, priority: int) -> None:
    operator.ask("/v1/jobs/priority", {"jobs": [job], "priority": priority})


async def _newest(loop: asyncio.AbstractEventLoop, operator: fleet_load.Coordinator) -> int:
    """Return the number of the last event."""
    return int((await loop.run_in_executor(None, operator.get, "/v1/overview"))["seq"])


def _changes(operator: fleet_load.Coordinator, watched: list[str]) -> dict[str, dict[str, float]]:
    """Return when each new priority was recorded, by job and priority."""
    found: dict[str, dict[str, float]] = {}
    for job in watched:
        events = operator.get(f"/v1/jobs/{job}/events?limit=1000")["events"]
        found[job] = {str(event["priority"]): event["ts"] for event in events if "priority" in event}
    return found


async def _unless(over: asyncio.Future[None], work: Any) -> None:
    """Wait for work, unless something went wrong."""
    await asyncio.wait((asyncio.ensure_future(work), over), return_when=asyncio.FIRST_COMPLETED)
    if over.done():
        over.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--token", type=Path, required=True, help="the operator's token file")
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--events", type=float, default=100.0, help="a second")
    parser.add_argument("--watched", default="", help="ids of pending jobs, whose priority changes")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(uvloop.run(main(parser.parse_args()))))
