"""A sweep of programs that is killed (-9) at random moments and continued with the same line, again and again.

Nothing that was recorded is lost or run again, nobody is left behind, and nothing that a dead process left stands in
the way. What is true is asked of the store itself and of the programs' own ledger, not of what Stoker says.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings

from stoker.core.clock import SystemClock
from stoker.core.jsontext import loads
from stoker.engine.key_leases import KeyLeases
from stoker.store.local_store import LocalStore, RecordHit
from stoker.store.prune import all_records
from tests.system.shell import Shell, wait_until

# Writes its result, works for a moment, and says last of all in the ledger that it has done its work.
PROGRAM = """#!/bin/sh
echo "result of $1" > "$STOKER_OUT/result"
sleep 0.03
echo "$1" >> ledger
"""
POINTS = 6


@dataclass
class Seen:
    """What was true after a kill."""

    recorded: set[int]
    ledger: Counter[int]


@dataclass
class Torture:
    """One sweep under fire."""

    shell: Shell
    chance: random.Random
    kills_group: bool
    more: tuple[str, ...]
    points: int = POINTS
    seen: list[Seen] = field(default_factory=list)

    def words(self) -> list[str]:
        return ["run", f"n=range:0:{self.points}:1", *self.more, "--", "./work.sh", "{n}"]

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", *self.words()],
            cwd=self.shell.folder,
            env=self.shell.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def kill_once(self) -> None:
        """Start the line, kill it at some moment, and see what is left; if it was too quick for that, ask for more."""
        process = self.start()
        try:
            _, complaint = process.communicate(timeout=self.chance.uniform(0.1, 1.2))
        except subprocess.TimeoutExpired:
            if self.kills_group:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.communicate()
        else:
            assert process.returncode == 0, complaint.decode()
        if self.has_ended():
            # Whoever gives a line again that has come to its end wants all of it again; this one goes on.
            self.points += POINTS
        wait_until(lambda: not strays(self.shell.home))
        self.look()

    def has_ended(self) -> bool:
        runs = self.shell.home / "runs"
        newest = max(runs.iterdir(), default=None, key=lambda run: run.stat().st_ctime_ns) if runs.is_dir() else None
        return newest is not None and (newest / "end.json").exists()

    def look(self) -> None:
        """Note what is recorded and how often each program has done its work; everything recorded has to be whole."""
        self.seen.append(Seen(recorded=self.recorded(), ledger=self.ledger()))

    def recorded(self) -> set[int]:
        if not (self.shell.home / "store").is_dir():
            return set()
        store = LocalStore(str(self.shell.home / "store"), clock=SystemClock())
        store.open()
        found = set()
        for record, _ in all_records(store):
            number = int(record.body["action"]["args"]["params"]["n"])
            whole = store.verify_record(record.key)
            assert isinstance(whole, RecordHit), f"trial {number} was recorded and is gone"
            assert not whole.lost, f"trial {number} was recorded and has lost {whole.lost}"
            assert store.read_bytes(record, "result") == f"result of {number}\n".encode()
            found.add(number)
        store.close()
        return found

    def ledger(self) -> Counter[int]:
        path = self.shell.folder / "ledger"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    def finish(self) -> None:
        """Let the line come to its end, and hold the whole story against what was seen on the way."""
        self.points += 1
        done = self.shell.stoker("--json", *self.words())
        assert done.code == 0, done.err
        self.look()
        last = self.seen[-1]
        assert last.recorded == set(range(self.points))
        for before, after in zip(self.seen, self.seen[1:], strict=False):
            assert before.recorded <= after.recorded, "what was recorded is recorded for good"
        for seen in self.seen:
            again = {n for n in seen.recorded if last.ledger[n] != seen.ledger[n]}
            assert not again, f"ran again after they were recorded: {again}"
        end = done.objects()[-1]
        assert (end["kind"], end["state"]) == ("run_end", "completed")
        assert end["trials"]["completed"] == self.points
        assert end["trials"]["kept"] == len(self.seen[-2].recorded)
        for number in range(self.points):
            assert (self.shell.folder / "stoker-out" / "work" / f"n={number}" / "result").exists()
        self.check_tidiness()

    def check_tidiness(self) -> None:
        assert strays(self.shell.home) == []
        assert self.shell.staged() == []
        leases = KeyLeases(str(self.shell.home / "store" / "leases"), clock=SystemClock())
        assert leases.held() == []
        ends = [loads(path.read_bytes())["state"] for path in self.shell.home.glob("runs/*/end.json")]
        assert set(ends) == {"completed"}
        jobs = self.shell.stoker("jobs", "--limit", "1000", "--json").objects()
        assert {job["state"] for job in jobs} <= {"completed", "failed"}, "a killed job is not said to be running"


def strays(home: Path) -> list[str]:
    """Return every process that was started by a Stoker with this home, wherever it went since."""
    mark = f"STOKER_HOME={home}".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if mark in environment:
            found.append(f"{pid} {words}")
    return found


def torment(shell: Shell, kills: int, *, kills_group: bool = False, more: tuple[str, ...] = ()) -> None:
    is_steady = settings.get_current_profile_name() == "steady"
    seed = int(os.environ.get("STOKER_TEST_SEED", "") or (1 if is_steady else time.time_ns()))
    print(f"STOKER_TEST_SEED={seed}")
    program = shell.folder / "work.sh"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (shell.folder / "data").write_text("what it says it reads")
    torture = Torture(shell=shell, chance=random.Random(seed), kills_group=kills_group, more=more)
    for _ in range(kills):
        torture.kill_once()
    torture.finish()


@pytest.mark.parametrize("kills_group", [False, True], ids=["alone", "group"])
def test_a_sweep_survives_kills_at_random_moments(tmp_path: Path, recipes: Path, kills_group: bool) -> None:
    torment(Shell(tmp_path, index=recipes), 5, kills_group=kills_group)


@pytest.mark.parametrize("more", ["inputs=[data]", "--jobs=2"])
def test_so_does_one_whose_inputs_are_known_and_one_that_runs_several_at_once(
    tmp_path: Path, recipes: Path, more: str
) -> None:
    torment(Shell(tmp_path, index=recipes), 3, more=(more,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "kills_group", "more"),
    [(100, False, ()), (100, True, ()), (50, False, ("inputs=[data]",)), (50, True, ("--jobs=2",))],
    ids=["alone", "group", "known", "at-once"],
)
def test_a_sweep_survives_a_hundred_kills(
    tmp_path: Path, recipes: Path, kills: int, kills_group: bool, more: tuple[str, ...]
) -> None:
    torment(Shell(tmp_path, index=recipes), kills, kills_group=kills_group, more=more)
