"""doit: one target file per stage, up to date while its arguments are unchanged.

doit count=N shape=fan home=DIR
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doit import get_var
from doit.tools import config_changed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trivial

COUNT = int(get_var("count", 1000))
SHAPE = get_var("shape", "fan")
HOME = Path(get_var("home", "."))
DOIT_CONFIG = {"default_tasks": ["work"]}


def write_square(index: int, targets: list[str]) -> None:
    Path(targets[0]).write_text(json.dumps(trivial.square(index)))


def write_follow(index: int, targets: list[str]) -> None:
    before = json.loads((HOME / f"{index - 1}.json").read_text()) if index else trivial.first()
    Path(targets[0]).write_text(json.dumps(trivial.follow(before, index)))


def task_work() -> Iterator[dict[str, Any]]:
    for index in range(COUNT):
        yield {
            "name": str(index),
            "actions": [(write_square if SHAPE == "fan" else write_follow, [index])],
            "targets": [str(HOME / f"{index}.json")],
            "file_dep": [str(HOME / f"{index - 1}.json")] if SHAPE == "chain" and index else [],
            "uptodate": [config_changed({"index": index})],
        }
