"""Kill -9 at every step of a commit: what was finished stays, the rest is made again, nothing torn is ever served."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.authoring import PlanBuilder
from stoker.engine.key_leases import KeyLeases
from stoker.engine.plan import Plan
from stoker.jobs.upkeep import clear_rubbish, find_rubbish
from stoker.store.local_store import RecordHit
from stoker.store.objects.local import LocalObjects
from stoker.store.prune import all_records
from tests.unit.engine.lab import Lab, Ran, quick_folder
from tests.unit.engine.stages import CountArgs, NumberArgs, add, blob, blob_sum, count, double
from tests.unit.host.real_processes import code_of, fork


def plan() -> Plan:
    """Blobs, inline records and a list."""
    start = PlanBuilder("crash").start(blob, NumberArgs(value=1))
    total = start.then(blob_sum, NumberArgs(value=2))
    items = start.builder.start(count, CountArgs(n=2)).each(double)
    return total.builder.add(add, id="all", feeds=[(None, total), (None, items)]).finish()


EXPECTED = 4000 + 2 + 0 + 2


def counting(steps: list[str]) -> Callable[[str], None]:
    return steps.append


def killing_at(number: int) -> Callable[[str], None]:
    left = number

    def step(_name: str) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    return step


def run(folder: Path, *, on_step: Callable[[str], None] | None = None, rerun: bool = False) -> Ran:
    with Lab(folder, on_step=on_step) as lab:
        ran = lab.run(plan(), rerun=frozenset({"blob", "blob-sum"}) if rerun else frozenset())
        assert ran.result.error is None
        assert lab.value(ran, "all") == EXPECTED
        return ran


def check_the_store(folder: Path) -> None:
    """Every record that can be found is whole, to the last byte."""
    with Lab(folder) as lab:
        for record, _ in all_records(lab.store):
            found = lab.store.verify_record(record.key)
            assert isinstance(found, RecordHit)
            assert found.has_bytes


@pytest.mark.parametrize("rerun", [False, True])
def test_a_run_that_is_killed_at_any_step_of_a_commit_is_taken_up_by_the_next(rerun: bool) -> None:
    with quick_folder() as folder:
        if rerun:
            run(folder / "reference")
        steps: list[str] = []
        reference = run(folder / "reference", on_step=counting(steps), rerun=rerun)
        assert len(steps) > (10 if rerun else 25)
        assert {"write", "sync", "rename"} & set(steps)
        for number, name in enumerate(steps):
            home = folder / f"{number}"
            if rerun:
                run(home)
            killed = fork(lambda home=home, number=number: run(home, on_step=killing_at(number), rerun=rerun))  # type: ignore[misc]
            assert code_of(killed) == -signal.SIGKILL, f"step {number}, {name}, never came"
            kept = set(_keys(home))
            later = run(home)
            assert later.digests == reference.digests, f"killed at step {number}, {name}"
            for node, result in later.result.nodes.items():
                if result.key is not None:
                    assert (later.endings[node] == "hit") == (result.key in kept), f"{node} after {number}, {name}"
            check_the_store(home)
            _clear(home)


def _keys(home: Path) -> list[str]:
    return [path.name for path in (home / "store" / "records").rglob("*") if len(path.name) == 64]


def _clear(home: Path) -> None:
    """What the dead left is found, and can be cleared without harm."""
    with Lab(home) as lab:
        leases = KeyLeases(lab.store.places.leases, clock=lab.clock)
        objects = LocalObjects(lab.store, clock=lab.clock)
        clear_rubbish(find_rubbish(lab.store, objects, leases, lab.clock), leases)
        assert lab.staged() == []
        assert [name for name in os.listdir(lab.store.places.leases) if not name.startswith(".")] == []
        ran = lab.run(plan())
        assert ran.result.ran == 0


def test_a_run_that_is_killed_again_and_again_gets_there_in_the_end() -> None:
    with quick_folder() as folder:
        deaths = 0
        for _ in range(200):
            code = code_of(fork(lambda: run(folder / "lab", on_step=killing_at(12))))
            if code == 0:
                break
            assert code == -signal.SIGKILL
            deaths += 1
        assert deaths > 1
        assert run(folder / "lab").result.ran == 0
