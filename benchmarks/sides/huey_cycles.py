"""Huey on SQLite, in its own process: take a job, run it, keep its result.

As durable as Stoker: write-ahead log and full synchronisation. One thread is its best here: a second one would wait for
the same exclusive lock (`--threads` to see it).
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path

from huey import SqliteHuey


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    queue = SqliteHuey("bench", filename=str(asked.home / "huey.db"), fsync=True, journal_mode="wal", timeout=60)

    @queue.task()
    def train(number: int, lr: float) -> dict[str, float]:
        return {"loss": lr, "number": number}

    with queue.storage.db(commit=True):
        pass
    store = queue.storage
    messages = [queue.serialize_task(train.s(number, 0.001 * number)) for number in range(asked.jobs)]
    with store.db(commit=True) as cursor:
        rows = [(store.name, message, 0) for message in messages]
        cursor.executemany("insert into task (queue, data, priority) values (?, ?, ?)", rows)
    claims: list[float] = []
    done: list[int] = []

    def work() -> None:
        count = 0
        while True:
            asked_s = time.perf_counter()
            task = queue.dequeue()
            if task is None:
                break
            claims.append(time.perf_counter() - asked_s)
            queue.execute(task)
            count += 1
        done.append(count)
        store.close()

    threads = [threading.Thread(target=work) for _ in range(asked.threads)]
    cpu_s, started_s = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started_s
    if queue.result_count() != asked.jobs:
        raise SystemExit(f"{queue.result_count()} results of {asked.jobs}")
    claims.sort()
    said = {"seconds": seconds, "executed": sum(done), "cpu_seconds": time.process_time() - cpu_s}
    print(json.dumps({**said, "claim_p50_s": claims[len(claims) // 2], "claim_p99_s": claims[len(claims) * 99 // 100]}))


if __name__ == "__main__":
    main()
