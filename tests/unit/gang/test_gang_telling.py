from __future__ import annotations

import signal

import pytest

from stoker.core.errors import RankFailed, RankTimeout, WindowMismatch
from stoker.core.jsontext import dumps
from stoker.gang import gang_failures
from stoker.gang.gang_failures import GangFailure, PendingRank, RankFailure, RankFailureMode, error_of, story_of
from stoker.gang.mailbox import Phase, RankPage, Slot
from stoker.gang.rank_config import Buffer, RankConfig
from stoker.gang.rank_context import RankPointer, context_of
from stoker.host.identity import ProcessExit


def report(rank=3, how=RankFailureMode.RAISED, after_s=0.41, **fields) -> RankFailure:
    fields = {"type": "RuntimeError", "text": "no route", **fields} if how is RankFailureMode.RAISED else fields
    return RankFailure(
        rank=rank, device=f"device {rank}, GPU-ab", phase=Phase.COMM, how=how, at_ns=1, after_s=after_s, **fields
    )


def told(cause: RankFailure, *collateral: RankFailure, pending=(), ready=0, crash="") -> RankFailed:
    verdict = GangFailure(cause=cause, collateral=collateral, pending=tuple(pending), ready=ready)
    return error_of(verdict, nranks=4, traceback=lambda rank: f"Traceback of {rank}\n", crash=lambda rank: crash)


def ended(status: int | None = None, number: int | None = None) -> ProcessExit:
    return ProcessExit(status=status, signal=number, max_rss_bytes=0, cpu_s=0.0)


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        (report(), "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: RuntimeError: no route"),
        (report(text="\n a\nb"), "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: RuntimeError: a"),
        (report(text=""), "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: RuntimeError"),
        (report(exit=ended(1)), "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: RuntimeError: no route"),
        (
            report(exit=ended(3)),
            "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: RuntimeError: no route (exit status 3)",
        ),
        (report(type="exit 3", text="", exit=ended(3)), "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: exit 3"),
        (
            report(type="exit stage left", text="", exit=ended(3)),
            "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: exit stage left (exit status 3)",
        ),
        (
            report(how=RankFailureMode.ENDED, exit=ended(number=signal.SIGKILL)),
            "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: ended without a report: signal 9 (SIGKILL)",
        ),
        (
            report(how=RankFailureMode.ENDED, exit=ended(3), text="torn"),
            "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: ended without a report: exit status 3, torn",
        ),
        (
            report(how=RankFailureMode.SILENT, after_s=120.2),
            "rank 3 (device 3, GPU-ab) is silent in COMM after 120 s; 2 of 4 are ready",
        ),
    ],
)
def test_a_failure_is_one_line(cause, line):
    assert str(told(cause, ready=2)) == line


def test_silence_is_an_error_of_its_own_and_still_a_failure():
    error = told(report(how=RankFailureMode.SILENT))
    assert isinstance(error, RankTimeout)
    assert (error.exit_code, RankFailed.exit_code) == (55, 54)


def test_a_kill_has_the_hint_that_it_mostly_means():
    assert "memory" in told(report(how=RankFailureMode.ENDED, exit=ended(number=signal.SIGKILL))).hint


def test_everything_is_in_the_data_and_can_be_written_as_json():
    waits = [PendingRank(rank=1, device="device 1", phase=Phase.STORE, for_s=0.25)]
    error = told(report(), report(rank=0, text="Connection closed by peer", is_echo=True), pending=waits, ready=1)
    assert (error.rank, error.phase, error.traceback) == (3, "COMM", "Traceback of 3\n")
    assert [(one["rank"], one["traceback"]) for one in error.collateral] == [(0, "Traceback of 0\n")]
    assert error.pending == ({"rank": 1, "device": "device 1", "phase": "STORE", "for_s": 0.25, "where": ""},)
    assert dumps(error.to_dict())


def test_the_story_has_the_cause_its_traceback_the_dragged_along_and_the_pending_in_this_order():
    waits = [PendingRank(rank=1, device="device 1", phase=Phase.STORE, for_s=0.25)]
    error = told(report(), report(rank=0, text="Connection closed\nby peer"), pending=waits)
    assert story_of(error) == [
        "rank 3 (device 3, GPU-ab) failed in COMM after 0.4 s: RuntimeError: no route",
        "Traceback of 3",
        "dragged along:",
        "  rank 0 (device 0, GPU-ab) in COMM after 0.4 s: RuntimeError: Connection closed",
        "still pending:",
        "  rank 1 (device 1) in STORE",
    ]


def test_of_a_crash_the_story_has_what_the_c_side_said():
    cause = report(how=RankFailureMode.ENDED, exit=ended(number=signal.SIGSEGV))
    assert "Fatal Python error" in story_of(told(cause, crash="Fatal Python error: Segmentation fault\n"))[1]


CONFIG = RankConfig(5, [Buffer("x", 8), Buffer("y", 4)])
SLOTS = (Slot(offset=0, nbytes=8), Slot(offset=256, nbytes=4))


def test_a_context_has_the_addresses_by_name_and_they_say_whose_they_are():
    stamps = (10**9, 2 * 10**9, 0, 4 * 10**9, 4 * 10**9, 5 * 10**9, 7 * 10**9, 0)
    page = RankPage(slots=SLOTS, actual_bytes=4096, window_base=0x1000, device_ctx=3, stamps_ns=stamps, pid=77)
    context = context_of(CONFIG, page, 1, 2)
    assert (context.device_id, context.rank, context.nranks, context.pid) == (5, 1, 2, 77)
    assert (context.device_ctx, context.local_window_base, context.actual_window_size) == (3, 0x1000, 4096)
    assert context.buffer_ptrs == {"x": 0x1000, "y": 0x1100}
    assert repr(context.buffer_ptrs["y"]) == "<0x1100 in rank 1>"
    assert context.phases_s == {"FORKED": 1.0, "DEVICE": 2.0, "COMM": 0.0, "WINDOW": 1.0, "STAGING": 2.0}


def test_a_count_of_buffers_that_differs_is_an_error_with_both_numbers():
    with pytest.raises(WindowMismatch, match="was promised 2 buffers and returned 1") as raised:
        context_of(CONFIG, RankPage(slots=SLOTS[:1], actual_bytes=4096), 1, 2)
    assert (raised.value.data["expected"], raised.value.data["got"]) == (2, 1)


@pytest.mark.parametrize(
    "page",
    [
        RankPage(slots=SLOTS, actual_bytes=100),
        RankPage(slots=(SLOTS[0], Slot(offset=256, nbytes=5)), actual_bytes=4096),
        RankPage(slots=(SLOTS[0], Slot(offset=2**60, nbytes=4)), actual_bytes=4096),
    ],
)
def test_a_window_that_is_not_as_promised_is_an_error(page):
    with pytest.raises(WindowMismatch):
        context_of(CONFIG, page, 0, 1)


def test_an_address_is_a_number_that_travels():
    import pickle

    again = pickle.loads(pickle.dumps(RankPointer(4096, 2)))
    assert (again, again.rank, again + 1) == (4096, 2, 4097)


def test_of_a_crash_only_the_frames_of_the_work_are_told():
    ours = f'  File "{gang_failures.__file__}", line 1 in run\n  File "<string>", line 1 in <module>\n'
    theirs = 'Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n  File "/w/a.py", line 4 in f'
    lost = report(how=RankFailureMode.ENDED, exit=ended(number=signal.SIGSEGV))
    assert story_of(told(lost, crash=f"{theirs}\n{ours}"))[1:] == theirs.splitlines()
    # A fault of our own is told as it is.
    assert story_of(told(lost, crash=f"Stack:\n{ours}"))[1:] == ["Stack:", *ours.splitlines()]
