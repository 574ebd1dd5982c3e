"""joblib.Memory.

`--way values` calls the function (a hit is loaded), `--way handles` asks for a reference to the result.
"""

from __future__ import annotations

import time

import speak
import trivial
from joblib import Memory


def main() -> None:
    asked = speak.read_arguments(ways=("values", "handles"))
    started = time.perf_counter()
    memory = Memory(asked.home, verbose=0)
    total: int | None = 0
    if asked.way == "handles":
        square = memory.cache(trivial.square)
        for index in range(asked.count):
            square.call_and_shelve(index)
        total = None
    elif asked.shape == "fan":
        square = memory.cache(trivial.square)
        total = sum(square(index)["value"] for index in range(asked.count))
    else:
        follow, value = memory.cache(trivial.follow), trivial.first()
        for index in range(asked.count):
            value = follow(value, index)
            total += value["value"]
    speak.tell(asked, seconds=time.perf_counter() - started, total=total)


main()
