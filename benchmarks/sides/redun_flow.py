"""redun: one workflow that calls the stage for every number, with its own database.

    redun run redun_flow.py work --count N

The annotations are real types here, since redun reads its arguments by them.
"""

import trivial
from redun import task

redun_namespace = "bench"


@task()
def square(index: int) -> trivial.Value:
    return trivial.square(index)


@task()
def total(values: list[trivial.Value]) -> int:
    return sum(value["value"] for value in values)


@task()
def work(count: int) -> int:
    return total([square(index) for index in range(count)])
