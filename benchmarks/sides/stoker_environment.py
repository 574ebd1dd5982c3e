"""An environment, in process: `--way build` makes one from a project's lock, `--way look` finds it again.

`--way build` is from after the imports to the environment's `ready.json`; what interpreters the machine has is known,
as it is after a worker's first start. `--way look` is what a keeper does before it starts a job: a fresh object, the
memory of interpreters read, the environment verified. The project stands in `ENV_PROJECT`. `executed` counts packages.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import speak

import stoker.worker.environments.uv  # noqa: F401 - otherwise imported inside the time
from stoker.core.clock import SystemClock
from stoker.core.job import EnvironmentChoice
from stoker.jobs.pack.environment_files import gather
from stoker.store.environment_cache import EnvironmentCache, EnvironmentReady
from stoker.worker.environments.environment_builder import Maker


def main() -> None:
    asked = speak.read_arguments(ways=("build", "look"))
    project = os.environ["ENV_PROJECT"]
    found = gather(project, "uv.lock")
    choice = EnvironmentChoice(kind=found.kind, path=found.path, digest=found.digest, python=found.python)
    maker_in(asked.home).platform.name  # noqa: B018 - asked once, as a worker does when it starts
    if asked.way == "build":
        maker = maker_in(asked.home)
        began = time.perf_counter()
        answer = maker.make([choice], project=project, say=lambda _line: None)
    else:
        began = time.perf_counter()
        answer = maker_in(asked.home).look([choice])
    seconds = time.perf_counter() - began
    if not isinstance(answer, EnvironmentReady):
        sys.exit(str(answer))
    speak.tell(asked, seconds=seconds, total=None, executed=len(answer.packages))


def maker_in(home: Path) -> Maker:
    clock = SystemClock()
    shelf = EnvironmentCache(os.path.join(home, "envs"), clock=clock)
    return Maker(shelf=shelf, environment=dict(os.environ), own_prefix=sys.prefix, clock=clock)


if __name__ == "__main__":
    main()
