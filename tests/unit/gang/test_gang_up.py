"""Gangs of real processes, with gloo: those that live."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from stoker.core.errors import BadCall, Cancelled, GangClosed, GangNotUp, RankFailed
from stoker.gang import Buffer, Gang, RankConfig, this_rank
from tests.unit.gang import gang_functions as functions
from tests.unit.host.real_processes import is_running, wait_until


def ranks(count=2, *buffers, **more) -> list[RankConfig]:
    return [RankConfig(device_id, buffers, **more) for device_id in range(count)]


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    """One for all who do it no harm."""
    with Gang(ranks(2, Buffer("x", 1000), Buffer("y", 8, dtype="float32")), backend="gloo") as up:
        yield up


def test_every_rank_is_a_process_of_its_own_and_leads_its_session(gang):
    (first, second) = gang.run(functions.whoami)
    assert (first[:2], second[:2]) == ((0, 2), (1, 2))
    assert first[2] == first[3] == gang.contexts[0].pid
    assert len({first[2], second[2], os.getpid()}) == 3


def test_results_come_in_rank_order_and_ranks_really_talk(gang):
    assert gang.run(functions.add, 10) == [30.0, 30.0]


def test_large_arguments_and_results_arrive_whole(gang):
    big = os.urandom(3 << 20)
    assert gang.run(functions.echo, big, {"a": [1]}) == [(big, {"a": [1]})] * 2


def test_contexts_say_where_everything_is(gang):
    inside = gang.run(functions.context)
    for rank, context in enumerate(gang.contexts):
        assert (context.rank, context.nranks, context.device_id) == (rank, 2, rank)
        assert context.device_ctx == 0
        assert context.actual_window_size >= 1000 + 8
        assert context.buffer_ptrs["x"] == context.local_window_base > 0
        assert context.buffer_ptrs["y"] == context.local_window_base + 1024
        assert set(context.phases_s) == {"FORKED", "DEVICE", "STORE", "COMM", "WINDOW", "STAGING"}
        assert inside[rank].buffer_ptrs == context.buffer_ptrs


def test_what_one_rank_writes_into_a_peers_window_the_peer_reads(gang):
    assert gang.run(functions.write_to_next, "x", b"from ") == [b"from 1", b"from 0"]


def test_a_buffer_is_a_tensor_over_the_same_bytes(gang):
    gang.run(functions.fill, "y", 1.5)
    assert gang.run(functions.as_list, "y") == [[1.5, 1.5]] * 2


def test_a_rank_has_the_owners_surroundings_of_now(gang, monkeypatch, tmp_path):
    monkeypatch.setenv("STOKER_TEST_WORD", "of now")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    with Gang(ranks(2), backend="gloo") as another:
        word, folder, threads, first = another.run(functions.surroundings, "STOKER_TEST_WORD")[0]
    assert (word, folder, threads, first) == ("of now", str(tmp_path), 1, sys.path[0])


def test_what_ranks_print_comes_out_here(capfd):
    with Gang(ranks(2)) as up:
        up.run(functions.say, "hello from")
    assert sorted(capfd.readouterr().out.splitlines()) == ["hello from 0", "hello from 1"]


@pytest.mark.parametrize(
    "function",
    [lambda: None, threading.Lock(), 7, functions],
    ids=["a lambda", "a lock", "a number", "a module"],
)
def test_what_cannot_travel_is_refused_before_anybody_is_called(gang, function):
    with pytest.raises(BadCall):
        gang.run(function)
    assert gang.run(functions.echo) == [()] * 2


def test_arguments_that_cannot_travel_are_refused_too(gang):
    with pytest.raises(BadCall, match="can't be sent to ranks"):
        gang.run(functions.echo, threading.Lock())


def test_a_gang_that_is_up_can_not_be_brought_up_again(gang):
    with pytest.raises(GangClosed, match="it is up"):
        gang.bring_up()
    assert gang.contexts


def test_outside_of_ranks_there_is_no_rank():
    with pytest.raises(GangNotUp):
        this_rank()


def test_contexts_are_guarded_before_bring_up_and_after_close():
    made = Gang(ranks(1), backend="gloo")
    with pytest.raises(GangNotUp):
        _ = made.contexts
    with pytest.raises(GangNotUp):
        made.run(functions.echo)
    with made:
        pids = [context.pid for context in made.contexts]
    made.close()
    made.close()
    for use in (lambda: made.contexts, lambda: made.run(functions.echo), made.store_to_host, made.bring_up):
        with pytest.raises(GangClosed):
            use()
    assert not any(is_running(pid) for pid in pids)


def test_a_gang_that_was_never_up_closes_and_stays_closed():
    made = Gang(ranks(1))
    made.close()
    with pytest.raises(GangClosed):
        made.bring_up()


def test_bytes_go_in_before_it_is_ready_and_come_out_when_asked_and_at_the_close():
    buffers = [Buffer("in", 4, load_from_host=True), Buffer("out", 4, store_to_host=True), Buffer("z", 8, "float64")]
    configs = [RankConfig(rank, buffers, inputs={"in": bytes([rank] * 4)}) for rank in range(2)]
    with Gang(configs) as up:
        assert up.run(functions.read, "in") == [b"\0\0\0\0", b"\1\1\1\1"]
        assert up.store_to_host() == [{"out": bytes(4)}] * 2
        up.run(functions.fill, "out", 65)
        assert up.store_to_host() == [{"out": b"AAAA"}] * 2
        up.run(functions.fill, "out", 66)
    assert up.outputs == [{"out": b"BBBB"}] * 2


def test_ranks_may_have_different_windows_and_a_wrong_name_says_which_there_are():
    with Gang([RankConfig(0, [Buffer("a", 16)], window_bytes=100_000), RankConfig(0)]) as up:
        assert [context.actual_window_size >= 100_000 for context in up.contexts] == [True, False]
        assert up.contexts[1].local_window_base == 0
        with pytest.raises(RankFailed, match="rank 0 has no buffer 'b'") as raised:
            up.run(functions.ask_for, 0, "b")
    assert raised.value.data["type"] == "NotFound"


def test_a_lazy_communicator_is_made_when_ranks_ask_for_it():
    with Gang(ranks(2), comm="lazy") as up:
        assert "STORE" in up.contexts[0].phases_s
        assert up.run(functions.join_late) == [(False, 2)] * 2
        assert up.run(functions.add, 1) == [3.0] * 2


def test_one_rank_inline_is_this_process():
    with Gang(ranks(1, Buffer("x", 8, store_to_host=True)), mode="inline") as up:
        assert up.contexts[0].pid == os.getpid()
        assert up.run(functions.whoami)[0][:3] == (0, 1, os.getpid())
        up.run(functions.fill, "x", 7)
    assert up.outputs == [{"x": b"\7" * 8}]
    with Gang(ranks(1), mode="inline") as again, pytest.raises(RankFailed, match="failed in RUN") as raised:
        again.run(functions.fail_everywhere)
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(GangNotUp):
        this_rank()


@pytest.mark.slow
def test_ranks_may_be_interpreters_of_their_own():
    with Gang(ranks(2, Buffer("x", 16)), mode="exec") as up:
        assert up.run(functions.add, 1) == [3.0] * 2
        assert up.run(functions.write_to_next, "x", b"from ") == [b"from 1", b"from 0"]
        pids = [context.pid for context in up.contexts]
        with pytest.raises(RankFailed, match=r"rank 1 \(device 1\) failed in RUN .*: ValueError: no such column"):
            up.run(functions.fail_on, 1, "raise")
    assert not any(is_running(pid) for pid in pids)


def test_two_gangs_of_one_process_do_not_meet():
    with Gang(ranks(2)) as one, Gang(ranks(2)) as another:
        assert one.run(functions.add, 1) == another.run(functions.add, 1)
        one.cancel()
        with pytest.raises(Cancelled):
            one.run(functions.echo)
        assert another.run(functions.add, 1) == [3.0] * 2


def test_a_gang_that_nobody_closed_ends_with_its_last_name():
    up = Gang(ranks(2))
    pids = [context.pid for context in up.bring_up()]
    del up
    wait_until(lambda: not any(is_running(pid) for pid in pids))
