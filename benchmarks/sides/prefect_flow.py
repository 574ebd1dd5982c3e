"""Prefect: one flow, results persisted to local storage, keyed by inputs and code; its own temporary server.

The time is that between the first stage and the last result, inside the flow: neither server nor flow start counts
against Prefect. Its stages are called one after the other; given to its pool of threads they took the same time.
"""

from __future__ import annotations

import time

import speak
import trivial
from prefect import flow, task
from prefect.cache_policies import INPUTS, TASK_SOURCE

kept = task(persist_result=True, cache_policy=INPUTS + TASK_SOURCE)
square = kept(trivial.square)
follow = kept(trivial.follow)


@flow
def work(count: int, shape: str) -> tuple[float, int]:
    started = time.perf_counter()
    total = 0
    if shape == "fan":
        total = sum(square(index)["value"] for index in range(count))
    else:
        value = trivial.first()
        for index in range(count):
            value = follow(value, index)
            total += value["value"]
    return time.perf_counter() - started, total


def main() -> None:
    asked = speak.read_arguments()
    seconds, total = work(asked.count, asked.shape)
    speak.tell(asked, seconds=seconds, total=total)


main()
