"""Ranks that fail in every way and phase, lie in their mailboxes, or are cancelled: named, ended, and nothing left."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.core.errors import (
    BadCall,
    BadGang,
    Cancelled,
    GangClosed,
    RankFailed,
    RankTimeout,
    StokerError,
    WindowMismatch,
)
from stoker.gang import Buffer, Gang, RankConfig
from stoker.gang.mailbox import Phase
from stoker.gang.starters import RankZygote, warm_here
from tests.fault import gang_acts as acts
from tests.leaks import left_open, open_files
from tests.lengths import examples
from tests.unit.gang import gang_functions as functions

PHASES = ("DEVICE", "STORE", "COMM", "WINDOW", "STAGING", "RUN")
KINDS = ("raise", "exit", "kill", "segv", "hang", "bad config")
# From when a rank got there: others must pass in that time, however busy this machine is.
LIMIT_S = 0.5
SAID = {
    "raise": "ValueError: no such column",
    "exit": "ended without a report: exit status 3",
    "kill": "ended without a report: signal 9 (SIGKILL)",
    "segv": "ended without a report: signal 11 (SIGSEGV)",
}
EVIDENCE = {
    "raise": lambda error: 'raise ValueError("no such column")' in error.traceback,
    "segv": lambda error: "Segmentation fault" in error.data["crash"],
    "hang": lambda error: "in hang" in error.data["crash"],
}
BUFFER = Buffer("x", 100)
# What can be wrong about a config, by the phase that would have stumbled over it; and where it is said to be.
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "DEVICE": (lambda: Gang([RankConfig(4), RankConfig(-1)]), "ranks[1].device_id"),
    "STORE": (lambda: Gang(ranks(), timeout_s=0), "timeout_s"),
    "COMM": (lambda: Gang(ranks(), backend="mpi"), "backend"),
    "WINDOW": (lambda: Gang([RankConfig(4), RankConfig(5, [BUFFER], window_bytes=10)]), "ranks[1].window_bytes"),
    "STAGING": (
        lambda: Gang([RankConfig(4), RankConfig(5, [Buffer("x", 100, load_from_host=True)])]),
        "ranks[1].inputs",
    ),
}
# What shared memory is called by those who give it a name. (Others use the folder, too.)
SHARED = ("torch", "gloo", "psm_", "sem.", "stoker", "nccl")


def ranks(count=2) -> list[RankConfig]:
    """Ranks whose devices have other numbers than they."""
    return [RankConfig(rank + 4) for rank in range(count)]


def zygote_pid(warm: RankZygote) -> int:
    assert warm._zygote is not None
    return warm._zygote.pid


def children(warm: RankZygote) -> list[int]:
    pid = zygote_pid(warm)
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def shared() -> set[str]:
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in names if name.startswith(SHARED)}


def left_shared(before: set[str]) -> set[str]:
    """Return what shared memory there is that was not before and that nobody removes in a while.

    The folder is everybody's: what other processes of this machine have there comes and goes.
    """
    deadline_s = time.monotonic() + 10
    while (left := shared() - before) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left


def failing(monkeypatch, act: str, phase: str, warm: RankZygote, **more) -> None:
    """Bring a gang up whose second rank does this in that phase."""
    monkeypatch.setenv(acts.ACT, f"1|{phase}|{act}")
    if phase != "RUN":
        Gang(ranks(), on_phase=acts.IN_PHASE, warm=warm, **more).bring_up()
        return
    with Gang(ranks(), warm=warm) as gang:
        gang.run(acts.in_call, 1, act, timeout_s=LIMIT_S if act == "hang" else None)


@pytest.fixture(scope="module")
def warm() -> Iterator[RankZygote]:
    """The zygote of this test process, which all tests of gangs share: torch is imported once."""
    here = warm_here()
    here.wait_ready()
    yield here
    assert children(here) == []


def is_about(error: BaseException, beginning: str) -> bool:
    """Whether an error begins so, and goes on with a time of a few seconds: how many depends on what else runs here."""
    return re.match(rf"{re.escape(beginning)} after \d\.\d s\b", str(error)) is not None


def wrong_about(error: BaseException | None, kind: str, phase: str) -> str:
    """Return what a fault's error does not tell; nothing, if it tells all."""
    if not isinstance(error, RankTimeout if kind == "hang" else RankFailed):
        return f"{error!r}"
    verb = "is silent in" if kind == "hang" else "failed in"
    wanted = {
        "the rank": error.rank == 1 and is_about(error, f"rank 1 (device 5) {verb} {phase}"),
        "the phase": error.phase == phase,
        "the cause": str(error).endswith(SAID.get(kind, " of 2 are ready")),
        "the evidence": EVIDENCE.get(kind, lambda _: True)(error),
        "the others": {0} == {one["rank"] for one in (*error.collateral, *error.pending)} or error.data["ready"] == 1,
    }
    return ", ".join(what for what, is_there in wanted.items() if not is_there) and f"{wanted}: {error}"


def wrong_about_config(phase: str, warm: RankZygote) -> str:
    if phase == "RUN":
        with Gang(ranks(), warm=warm) as gang:
            try:
                gang.run(lambda: None)
            except BadCall as error:
                return "" if "lambda" in str(error) and gang.run(acts.add, 1) == [2.0, 2.0] else str(error)
            return "no error"
    make, place = BAD[phase]
    try:
        make()
    except BadGang as error:
        return "" if [fault.where for fault in error.faults] == [place] else str(error)
    return "no error"


def test_six_faults_in_six_phases_are_named_with_rank_device_phase_and_cause_and_nobody_is_left(monkeypatch, warm):
    wrong, table = [], []
    for kind in KINDS:
        row = []
        for phase in PHASES:
            error, began_s = None, time.monotonic()
            if kind == "bad config":
                lacks = wrong_about_config(phase, warm)
            else:
                limits = {Phase[phase]: LIMIT_S} if kind == "hang" else {}
                try:
                    failing(monkeypatch, kind, phase, warm, phase_limits_s=limits)
                except StokerError as raised:
                    error = raised
                lacks = wrong_about(error, kind, phase)
            row.append(f"{(time.monotonic() - began_s) * 1000:7.0f}")
            left = children(warm)
            if lacks or left:
                wrong.append(f"{kind} in {phase}: {lacks or 'told well'}; left: {left}")
        table.append(f"{kind:<12}" + " ".join(row))
    print(f"milliseconds{' '.join(f'{phase:>7}' for phase in PHASES)}", *table, sep="\n")
    assert wrong == [], f"{len(wrong)} of {len(KINDS) * len(PHASES)} cells are wrong:\n" + "\n".join(wrong)


def fail_often(count: int, monkeypatch, warm: RankZygote, folder: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    rng = random.Random(8)
    kinds = [kind for kind in KINDS if kind in SAID]
    orders = [(rng.choice(kinds), rng.choice(PHASES)) for _ in range(count)]

    def fail(kind: str, phase: str) -> None:
        with pytest.raises(RankFailed):
            failing(monkeypatch, kind, phase, warm)

    # What is made once, and stays.
    fail("raise", "RUN")
    ours, theirs, memory = open_files(), open_files(zygote_pid(warm)), shared()
    for kind, phase in orders:
        fail(kind, phase)
        assert children(warm) == []
    # The zygote opens files of /proc for moments, between launches too; what leaks stays.
    assert left_open(ours) == set()
    assert left_open(theirs, zygote_pid(warm)) == set()
    assert left_shared(memory) == set()
    assert list(folder.iterdir()) == []


def test_failing_launches_leave_no_process_no_memory_no_folder_and_no_open_file(monkeypatch, warm, tmp_path):
    fail_often(examples(10, 20), monkeypatch, warm, tmp_path)


@pytest.mark.slow
def test_two_hundred_failing_launches_leave_nothing(monkeypatch, warm, tmp_path):
    fail_often(200, monkeypatch, warm, tmp_path)


def test_many_gangs_of_one_owner_come_up_at_once(warm):
    count = examples(16, 32)
    together = threading.Barrier(count)

    def one(number: int) -> list[float]:
        together.wait()
        with Gang(ranks(), warm=warm) as gang:
            return gang.run(acts.add, number)

    before = open_files()
    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(one, range(count))) == [[2.0 * number] * 2 for number in range(count)]
    assert children(warm) == []
    assert left_open(before) == set()


def use_for_ever(gang: Gang) -> None:
    gang.bring_up()
    gang.run(functions.hang)


@pytest.mark.parametrize(
    "trial", [*range(12), *(pytest.param(trial, marks=pytest.mark.slow) for trial in range(12, 20))]
)
def test_a_gang_can_be_cancelled_at_any_moment(warm, trial):
    gang = Gang(ranks(), warm=warm)
    timer = threading.Timer(random.Random(trial).uniform(0, 0.08), gang.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        use_for_ever(gang)
    timer.join()
    assert children(warm) == []
    with pytest.raises(GangClosed):
        gang.run(acts.add, 1)


@pytest.mark.parametrize("trial", range(4))
def test_closing_from_another_thread_ends_a_bring_up_and_returns_when_all_are_gone(warm, trial):
    gang = Gang(ranks(), warm=warm)
    left = []

    def close() -> None:
        gang.close()
        left.append(children(warm))

    timer = threading.Timer(random.Random(trial).uniform(0, 0.03), close)
    timer.start()
    # It may be up before, or closed before it begins.
    with contextlib.suppress(Cancelled, GangClosed):
        gang.bring_up()
    timer.join()
    assert left == [[]]
    with pytest.raises(GangClosed):
        gang.bring_up()


def test_locks_that_threads_of_the_owner_hold_hinder_no_rank(warm, capfd):
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with logging._lock:  # type: ignore[attr-defined]  # what every line that is logged takes
            held.set()
            done.wait()

    def spin() -> None:
        while not done.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=work) for work in (hold, spin)]
    for thread in threads:
        thread.start()
    held.wait()
    try:
        with Gang(ranks(), warm=warm) as gang:
            assert gang.run(acts.print_and_log, "free", timeout_s=10) == [0, 1]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    # Two ranks may print at the same time, a word and its end of line apart.
    assert sorted(capfd.readouterr().out) == sorted("free\nfree\n")


# The phase that a liar is said to be in may be any, and whatever it says of the time, it gets no more than this.
LIMITS_S = dict.fromkeys(Phase, 0.5)
LIES = {
    "scribble": (RankTimeout, "; what it wrote last is no page"),
    "scribble and die": (RankFailed, "signal 9 (SIGKILL), in the middle of a report"),
    "scribble for ever": (RankTimeout, "; what it wrote last is no page"),
    "a billion buffers": (WindowMismatch, "rank 1 was promised 0 buffers and returned 128"),
    "failed in the future": (RankFailed, "rank 1 (device 5) failed in STAGING"),
    "began in the future": (RankTimeout, "rank 1 (device 5) is silent in STAGING"),
    "a huge text": (RankFailed, "rank 1 (device 5) failed in STAGING"),
}


@pytest.mark.parametrize("lie", LIES)
def test_whatever_a_rank_writes_into_its_mailbox_its_owner_names_it_and_goes_on(monkeypatch, warm, lie):
    kind, said = LIES[lie]
    with pytest.raises(kind) as raised:
        failing(monkeypatch, lie, "STAGING", warm, phase_limits_s=LIMITS_S)
    assert is_about(raised.value, said) if said.startswith("rank 1 (device") else said in str(raised.value)
    assert raised.value.data["rank"] == 1
    assert len(str(raised.value)) < 1000
    assert children(warm) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_page_of_nonsense_that_looks_whole_is_an_error_of_that_rank(monkeypatch, warm, seed):
    with pytest.raises(StokerError) as raised:
        failing(monkeypatch, f"random numbers|{seed}", "STAGING", warm, phase_limits_s=LIMITS_S)
    assert raised.value.data["rank"] == 1
    assert "rank 1" in str(raised.value)
    assert children(warm) == []


def test_a_page_that_was_spoilt_and_is_written_again_does_no_harm(monkeypatch, warm):
    monkeypatch.setenv(acts.ACT, "1|DEVICE|scribble and go on")
    with Gang(ranks(), on_phase=acts.IN_PHASE, warm=warm) as gang:
        assert gang.run(acts.add, 1) == [2.0, 2.0]
