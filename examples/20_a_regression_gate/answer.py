"""A stand-in for a model that answers: reports its perplexity and the time of each answer."""

import json
import math
import time

with open("settings.json", encoding="utf-8") as file:
    settings = json.load(file)


def answer(work: int) -> float:
    begun = time.perf_counter()
    total = 0.0
    for number in range(work):
        total += math.sqrt(number)
    return (time.perf_counter() - begun) * 1000.0


latencies = [answer(settings["work"]) for _ in range(8)]
print(json.dumps({"perplexity": settings["perplexity"], "latency_ms": latencies}))
