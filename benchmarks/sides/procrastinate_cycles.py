"""Procrastinate on PostgreSQL, in its own process: fetch a job, mark it as done.

Two ways. `calls`: its manager's own fetch and finish, by so many coroutines at once, nothing run in between: less than
its worker does. `worker`: its worker, with that concurrency. The server decides how durable it is, the same for both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import procfs
import procrastinate
from procrastinate import jobs


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--way", choices=("calls", "worker"), default="calls")
    parser.add_argument("--database", type=int, required=True, help="the server's process, whose CPU time is told")
    asked = parser.parse_args()
    connector = procrastinate.PsycopgConnector(
        conninfo=asked.url, min_size=asked.connections, max_size=asked.connections
    )
    app = procrastinate.App(connector=connector)
    ran: list[int] = []

    @app.task
    async def train(number: int, lr: float) -> dict[str, float]:
        ran.append(number)
        return {"loss": lr}

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for begin in range(0, asked.jobs, 1000):
            some = [{"number": n, "lr": 0.001 * n} for n in range(begin, min(begin + 1000, asked.jobs))]
            await train.batch_defer_async(*some)
        claims: list[float] = []
        database_s = procfs.family_used_s(asked.database)
        cpu_s, started_s = time.process_time(), time.perf_counter()
        if asked.way == "worker":
            await app.run_worker_async(concurrency=asked.workers, wait=False, install_signal_handlers=False)
        else:
            await asyncio.gather(*(call(app, ran, claims) for _ in range(asked.workers)))
        seconds = time.perf_counter() - started_s
        cpu_s = time.process_time() - cpu_s
        said: dict[str, object] = {"seconds": seconds, "executed": len(ran), "cpu_seconds": cpu_s}
        said["database_cpu_s"] = procfs.family_used_s(asked.database) - database_s
        if claims:
            claims.sort()
            said["claim_p50_s"] = claims[len(claims) // 2]
            said["claim_p99_s"] = claims[len(claims) * 99 // 100]
    print(json.dumps(said))


async def call(app: procrastinate.App, ran: list[int], claims: list[float]) -> None:
    manager = app.job_manager
    worker = await manager.register_worker()
    while True:
        asked_s = time.perf_counter()
        job = await manager.fetch_job(None, worker)
        if job is None:
            return
        claims.append(time.perf_counter() - asked_s)
        ran.append(job.id or 0)
        await manager.finish_job(job, jobs.Status.SUCCEEDED, delete_job=False)


if __name__ == "__main__":
    asyncio.run(main())
