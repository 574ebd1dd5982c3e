"""The work that every side does: a small number in, a small JSON object out.

What is left of the time is the engine's own.
"""

from __future__ import annotations

Value = dict[str, int]

executions: list[int] = []
"""The stages that really ran in this process: a hit that is none, or a run that is none, can't go unnoticed."""


def square(index: int) -> Value:
    """One stage of the fan: it depends on its own number only."""
    executions.append(index)
    return {"index": index, "value": index * index}


def follow(before: Value, index: int) -> Value:
    """One stage of the chain: it also reads what the stage before it made."""
    executions.append(index)
    return {"index": index, "value": before["value"] + index}


def first() -> Value:
    """What the first stage of a chain follows."""
    return {"index": -1, "value": 0}


def expected(shape: str, count: int) -> int:
    """The sum of all values, so that a side which skipped work is found out."""
    if shape == "fan":
        return sum(index * index for index in range(count))
    return sum(index * (index + 1) // 2 for index in range(count))
