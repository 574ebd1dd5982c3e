"""Kill -9 of a gang's owner or zygote at any moment: nobody outlives it, and nothing is left of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.core.errors import ProcessLost
from stoker.gang import Gang, RankConfig
from stoker.gang.starters import warm_here
from tests.fault import gang_acts as acts
from tests.fault.test_gang_faults import children, left_shared, shared
from tests.lengths import examples
from tests.unit.gang import gang_functions as functions
from tests.unit.host.real_processes import is_running, wait_until

WITHIN_S = 5.0
"""A tenth of a second where nobody else computes; a machine that others load stalls for seconds."""
COLD = """
import os, sys, threading
from stoker.gang.owner import warm_here
zygote = warm_here()._warm()
print(zygote.pid, flush=True)
threading.Event().wait()
"""


class Marked:
    """Processes that descend from one program, known by a variable that no other has."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._mark = f"STOKER_TEST_MARK={uuid.uuid4().hex}"
        self.folder = folder
        # They descend from somebody else.
        self._others = set(os.listdir("/proc"))
        name, _, value = self._mark.partition("=")
        self._process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder), name: value},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, order: str) -> str:
        self.say(order)
        return self.hear()

    def living(self) -> set[int]:
        """Return all who have the mark. Whoever is dead and not yet reaped has no variables any more."""
        found = set()
        for name in filter(str.isdigit, set(os.listdir("/proc")) - self._others):
            try:
                if self._mark.encode() in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.add(int(name))
            except (OSError, ProcessLookupError):
                continue
        return found

    def wait_for(self, count: int) -> None:
        """Wait until there are so many."""
        wait_until(lambda: len(self.living()) >= count)

    def gone_after_s(self, stays: set[int]) -> float:
        """Wait until nobody but these lives; give how long that took."""
        began_s = time.monotonic()
        wait_until(lambda: self.living() <= stays)
        return time.monotonic() - began_s

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def marked(folder: Path, *command: str) -> Iterator[Marked]:
    made = Marked(folder, *command)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def owners(tmp_path_factory) -> Iterator[Marked]:
    with marked(tmp_path_factory.mktemp("temporary"), "-m", "tests.fault.gang_owners") as made:
        assert made.hear() == "ready"
        yield made


def kill_often(count: int, owners: Marked) -> None:
    rng, before = random.Random(count), shared()
    slowest_s = 0.0
    for _ in range(count):
        pid = int(owners.ask("loop"))
        # The owners' maker, the owner, its zygote and two ranks: killed while so many of them are there, or later.
        wanted, moment_s = rng.randint(2, 5), rng.uniform(0, 0.06)
        owners.wait_for(wanted)
        threading.Event().wait(moment_s)
        os.kill(pid, signal.SIGKILL)
        slowest_s = max(slowest_s, owners.gone_after_s({owners.pid, pid}))
        assert owners.ask("reap") == "-9"
        assert owners.living() == {owners.pid}
    print(f"{count} owners killed: all gone after {slowest_s * 1000:.0f} ms at most")
    assert slowest_s < WITHIN_S
    assert left_shared(before) == set()
    assert list(owners.folder.iterdir()) == []


def test_of_some_owners_killed_at_any_moment_nobody_and_nothing_is_left(owners):
    kill_often(examples(10, 20), owners)


@pytest.mark.slow
def test_of_two_hundred_owners_killed_at_any_moment_nobody_and_nothing_is_left(owners):
    kill_often(200, owners)


def test_owners_with_four_gangs_each_at_once_do_not_clash(owners):
    before = shared()
    count = examples(4, 8)
    assert owners.ask(f"at once {count}") == " ".join(["0"] * count)
    assert owners.living() == {owners.pid}
    assert left_shared(before) == set()
    assert list(owners.folder.iterdir()) == []


@pytest.mark.parametrize("trial", range(2))
def test_a_zygote_that_still_imports_ends_with_its_owner(tmp_path, trial):
    with marked(tmp_path, "-c", COLD) as owner:
        zygote_pid = int(owner.hear())
        threading.Event().wait(random.Random(trial).uniform(0, 0.5))
        assert is_running(zygote_pid)
        os.kill(owner.pid, signal.SIGKILL)
        assert owner.gone_after_s({owner.pid}) < WITHIN_S
    assert list(tmp_path.iterdir()) == []


def test_a_killed_zygote_is_an_error_that_says_so_and_the_next_gang_gets_another(monkeypatch):
    warm = warm_here()
    # One is used, one on its way: the zygote takes all ranks along, and none of them is the cause.
    monkeypatch.setenv(acts.ACT, "1|COMM|hang")
    on_its_way = Gang([RankConfig(0), RankConfig(1)], warm=warm, on_phase=acts.IN_PHASE)
    with Gang([RankConfig(0), RankConfig(1)], warm=warm) as used, ThreadPoolExecutor(2) as pool:
        zygote = warm._zygote
        assert zygote is not None
        coming = pool.submit(on_its_way.bring_up)
        called = pool.submit(used.run, functions.hang)
        wait_until(lambda: len(children(warm)) == 4)
        pids = [zygote.pid, *children(warm)]
        os.kill(zygote.pid, signal.SIGKILL)
        for waited_for in (coming, called):
            with pytest.raises(ProcessLost, match=rf"zygote \(process {zygote.pid}\) is gone"):
                waited_for.result(WITHIN_S)
        # The kernel kills them; the first that is gone is reported at once.
        wait_until(lambda: not any(is_running(pid) for pid in pids), WITHIN_S)
    with Gang([RankConfig(0), RankConfig(1)], warm=warm) as gang:
        assert gang.run(acts.add, 1) == [2.0, 2.0]
    assert warm._zygote is not zygote
