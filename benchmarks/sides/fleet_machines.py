"""Many machines of a few kinds, each with a job that runs, whose jobs end one after another: what does a claim take?

    python fleet_machines.py URL --token FILE --machines 10000 --cycles 5000 --server PID

All machines say hello and get a job first. Then machine after machine finishes its job and asks for the next one; 50 of
them at a time, over a connection each. The queue holds jobs of 20 shapes, always more than there are machines. Prints
one JSON object: what a claim took, how many got nothing, and the CPU time of the coordinator.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fleet_load
import procfs
import uvloop
from fleet_load import GIB, GRANTED

from stoker.core.capability import Capability
from stoker.core.device import Backend, Device, TriState, TriStateAnswer

LINES = 50
SHAPES = 20
SPARE = 2_000
KINDS = ("", "NVIDIA GeForce RTX 4090", "NVIDIA A100", "NVIDIA H100")
YES = TriStateAnswer(verdict=TriState.YES)


def order(number: int) -> dict[str, object]:
    """A job of one of some shapes: half of them want a device."""
    shape = number % SHAPES
    needs: dict[str, object] = {"ram_bytes": (1 + shape // 2) * GIB}
    if shape % 2:
        needs |= {"wish": "require", "vram_bytes": (4 + shape // 2) * GIB}
    return {**fleet_load.order(number), "requirements": needs}


def capability(name: str, number: int) -> Capability:
    kind = KINDS[number % len(KINDS)]
    device = Device(uuid=f"GPU-{name}", backend=Backend.CUDA, name=kind, total_bytes=24 * GIB,
                    installed=YES, visible=YES, usable=YES)  # fmt: skip
    return Capability(hostname=name, os="linux", arch="x86_64", cpu_cores=16, ram_total_bytes=64 * GIB,
                      ram_available_bytes=64 * GIB, devices=(device,) if kind else ())  # fmt: skip


class Line(fleet_load.Worker):
    """One connection, over which some machines speak in turns."""

    def __init__(self, host: str, left: fleet_load.Left, numbers: range) -> None:
        super().__init__(numbers[0], host, left, is_started=True)
        self.numbers = numbers
        self.empty = 0
        self._held: dict[int, tuple[str, str]] = {}

    async def join(self) -> None:
        for number in self.numbers:
            self._become(number)
            facts = json.dumps(capability(self._name, number).to_dict())
            said = f'"slots":1,"capability":{facts},"capability_digest":"{self._name}"'
            await self._ask("/v1/hello", f"{{{self._who},{said}}}")

    async def fill(self) -> None:
        for number in self.numbers:
            await self._get(number)
        self.empty = 0
        self.claims_s.clear()

    async def press(self, cycles: int) -> None:
        for turn in range(cycles):
            number = self.numbers[turn % len(self.numbers)]
            held = self._held.pop(number, None)
            if held is not None:
                await self._ask(f"/v1/attempts/{held[0]}/finish", held[1] + self._finished)
            await self._get(number)

    async def _get(self, number: int) -> None:
        """Ask for a machine's next job, and start it."""
        self._become(number)
        self._asked += 1
        at_s = time.perf_counter()
        answer = await self._ask(
            "/v1/claims", f'{{"request_id":"{self._name}-{self._born}-{self._asked}",{self._who}}}'
        )
        self.claims_s.append(time.perf_counter() - at_s)
        found = GRANTED.search(answer)
        if found is None:
            self.empty += 1
            return
        token = f'{{"attempt":{int(found[2])},"epoch":{int(found[3])},"generation":{int(found[4])}'
        self._held[number] = found[1].decode(), token
        await self._ask(f"/v1/attempts/{found[1].decode()}/start", token + "}")

    def _become(self, number: int) -> None:
        self._name = f"m{number}"
        self._who = f'"worker":"{self._name}","incarnation":"incarnation-{self._born}"'

    async def _ask(self, path: str, body: str) -> bytes:
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._then = heard.set_result
        self._say(path, body)
        return await heard


async def main(asked: argparse.Namespace) -> dict[str, object]:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = fleet_load.Left(1, over)
    lines: list[Any] = []
    for number in range(min(LINES, asked.machines)):

        def make(host: str, number: int = number) -> Line:
            return Line(host, left, range(number, asked.machines, LINES))

        lines.append(await fleet_load.connect(asked.url, make))

    async def all_of(do: Callable[[Line], Awaitable[None]]) -> None:
        doing = asyncio.gather(*(do(line) for line in lines))
        await asyncio.wait((doing, over), return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            over.result()
        await doing

    await all_of(Line.join)
    await all_of(Line.fill)
    server_s, started_s = procfs.used_s(asked.server), time.perf_counter()
    await all_of(lambda line: line.press(asked.cycles // len(lines)))
    seconds = time.perf_counter() - started_s
    claims = sorted(took for line in lines for took in line.claims_s)
    over.set_result(None)
    for line in lines:
        line.close()
    return {
        "seconds": seconds,
        "claims": len(claims),
        "empty": sum(line.empty for line in lines),
        "server_cpu_s": procfs.used_s(asked.server) - server_s,
        "claim_p50_s": claims[len(claims) // 2],
        "claim_p99_s": claims[len(claims) * 99 // 100],
        "claim_max_s": claims[-1],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--token", type=Path, required=True, help="the operator's token file")
    parser.add_argument("--machines", type=int, required=True)
    parser.add_argument("--cycles", type=int, required=True)
    parser.add_argument("--server", type=int, required=True, help="its process, whose CPU time is told")
    given = parser.parse_args()
    coordinator = fleet_load.Coordinator(given.url, given.token.read_text().strip(), None)
    coordinator.upload()
    coordinator.submit(given.machines + given.cycles + SPARE, make=order)
    print(json.dumps(uvloop.run(main(given))))
