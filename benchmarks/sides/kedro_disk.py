"""Kedro: one node per stage, every result a JSON data set on disk, the sequential runner.

The arguments are bound to the functions: as data sets in memory they cost Kedro 2.7 ms more per stage at 1,000
stages, since its runner looks through the whole pipeline whenever an input is no longer needed. The time is from
arguments to results: catalogue and pipeline are built inside it, as Stoker's plan is. Afterwards the results are read
back, outside the time, and checked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial, update_wrapper
from pathlib import Path

import speak
import trivial
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Node, Pipeline
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset


def fan(count: int, home: Path) -> tuple[Pipeline, DataCatalog]:
    nodes = [
        Node(_bound(trivial.square, i), inputs=None, outputs=f"value_{i}", name=f"square_{i}") for i in range(count)
    ]
    return Pipeline(nodes), DataCatalog(_on_disk(count, home))


def chain(count: int, home: Path) -> tuple[Pipeline, DataCatalog]:
    before = ["first", *(f"value_{i}" for i in range(count))]
    nodes = [
        Node(_bound(trivial.follow, i), inputs=before[i], outputs=f"value_{i}", name=f"follow_{i}")
        for i in range(count)
    ]
    return Pipeline(nodes), DataCatalog({"first": MemoryDataset(trivial.first()), **_on_disk(count, home)})


def _bound(stage: Callable[..., trivial.Value], index: int) -> partial[trivial.Value]:
    bound = partial(stage, index=index)
    update_wrapper(bound, stage)  # Kedro warns about a function without a name
    return bound


def _on_disk(count: int, home: Path) -> dict[str, JSONDataset]:
    return {f"value_{i}": JSONDataset(filepath=str(home / f"{i}.json")) for i in range(count)}


def main() -> None:
    asked = speak.read_arguments()
    logging.disable(logging.WARNING)
    asked.home.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    pipeline, catalog = (fan if asked.shape == "fan" else chain)(asked.count, asked.home)
    SequentialRunner().run(pipeline, catalog)
    seconds = time.perf_counter() - started
    total = sum(catalog.load(f"value_{i}")["value"] for i in range(asked.count))
    speak.tell(asked, seconds=seconds, total=total)


main()
