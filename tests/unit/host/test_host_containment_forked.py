from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

from stoker.core.errors import ContainmentUnavailable
from stoker.host.box_entry import ChildSetup, let_in
from stoker.host.containment.box import ContainmentLimits
from stoker.host.zygote import Zygote
from tests.unit.host.real_boxes import CAP, MIB, cgroup1
from tests.unit.host.real_processes import is_running

ENTRIES = "tests.unit.host.forked_entries"
WAIT_S = 20.0


@pytest.fixture(scope="module")
def zygote(tmp_path_factory) -> Iterator[Zygote]:
    folder = tmp_path_factory.mktemp("zygote")
    with Zygote.start(
        sys.executable, [ENTRIES], env=dict(os.environ), cwd=folder, sys_path=sys.path, linger_s=0.1
    ) as started:
        yield started


def test_forked_work_is_in_its_box_before_it_begins(zygote):
    box = cgroup1().open("job-forked", CAP, "one")
    forked = zygote.fork(f"{ENTRIES}:describe_box", {}, box=box.entry)
    (seen,) = forked.events()
    assert forked.wait(WAIT_S).is_success
    assert seen["cgroup"].count(box.name) == len(box.entry.procs_files)
    box.close()


def test_forked_work_that_eats_all_memory_is_killed_and_only_it(zygote):
    box = cgroup1().open("job-eater", CAP, "one")
    forked = zygote.fork(f"{ENTRIES}:eat", {"size": 300 * MIB}, box=box.entry)
    assert list(forked.events()) == []
    ended = forked.wait(WAIT_S)
    assert ended.signal == signal.SIGKILL
    assert box.read().was_out_of_memory
    box.close()
    (seen,) = zygote.fork(f"{ENTRIES}:eat", {"size": 300 * MIB}).events()
    assert seen == {"ate": 300 * MIB}


def test_what_a_forked_stage_shares_with_its_zygote_is_not_counted_against_it(zygote):
    box = cgroup1().open("job-light", ContainmentLimits(memory_bytes=512 * MIB), "one")
    forked = zygote.fork(f"{ENTRIES}:eat", {"size": 40 * MIB}, box=box.entry)
    assert list(forked.events()) == [{"ate": 40 * MIB}]
    forked.wait(WAIT_S)
    assert 40 * MIB < (box.read().peak_bytes or 0) < 60 * MIB
    box.close()


def test_descendants_of_forked_work_are_in_its_box_too(zygote):
    box = cgroup1().open("job-family", CAP, "one")
    forked = zygote.fork(
        f"{ENTRIES}:leave_family", {"descendants": [["own_session"], ["grandchild"]], "stays": True}, box=box.entry
    )
    (seen,) = forked.read_events(WAIT_S)
    assert set(seen["descendants"]) <= set(box.members())
    box.kill_all()
    assert not any(is_running(pid) for pid in seen["descendants"])
    assert forked.wait(WAIT_S).signal == signal.SIGKILL
    box.close()


def test_an_address_space_limit_holds_for_forked_work(zygote):
    forked = zygote.fork(f"{ENTRIES}:describe_box", {}, box=ChildSetup(address_space_bytes=2048 * MIB))
    (seen,) = forked.events()
    assert seen["address_space"] == 2048 * MIB
    forked.wait(WAIT_S)


def test_forked_work_that_cannot_enter_its_box_does_nothing_and_says_why(zygote, tmp_path):
    log = tmp_path / "log"
    forked = zygote.fork(
        f"{ENTRIES}:echo", {"x": 1}, log_path=log, box=ChildSetup(procs_files=("/no/such/group/cgroup.procs",))
    )
    assert list(forked.events()) == []
    with pytest.raises(ContainmentUnavailable, match="/no/such/group"):
        forked.wait(WAIT_S)
    assert forked.unreadable == []


def test_forked_work_waits_at_its_gate(zygote):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            forked = zygote.fork(f"{ENTRIES}:echo", {"x": 1}, box=ChildSetup(gate_fd=theirs.fileno()))
        assert forked.read_events(0.05) == []
        let_in(ours)
        assert list(forked.events()) == [{"got": {"x": 1}}]
    assert forked.wait(WAIT_S).is_success


def test_forked_work_whose_gate_is_closed_never_begins(zygote):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        forked = zygote.fork(f"{ENTRIES}:echo", {"x": 1}, box=ChildSetup(gate_fd=theirs.fileno()))
    assert list(forked.events()) == []
    with pytest.raises(ContainmentUnavailable, match="closed"):
        forked.wait(WAIT_S)


def test_a_gate_leaves_no_descriptor_behind_in_the_work(zygote):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            forked = zygote.fork(f"{ENTRIES}:describe", {}, box=ChildSetup(gate_fd=theirs.fileno()))
        let_in(ours)
        (seen,) = forked.events()
    assert len(seen["fds"]) == 4
    forked.wait(WAIT_S)
