"""Gangs of two owners that meet on this machine, with real ranks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from stoker.core.errors import BadGang, RankFailed, RendezvousFailed, StokerError
from stoker.gang import Gang, RankConfig, RendezvousClient, RendezvousHost
from stoker.gang.gang_failures import RankSnapshot
from stoker.gang.mailbox import RankPage
from stoker.gang.rendezvous_types import HostPart, HostRanks, RendezvousLink, interface_of, variables_for
from stoker.gang.starters import warm_here
from tests.unit.gang import gang_functions as functions
from tests.unit.host.real_processes import is_running

TOKEN = "sixteen letters and more"
HOME = "127.0.0.1"


def one_host() -> RendezvousHost:
    return RendezvousHost(["lab1"], at=(HOME, 0), token=TOKEN, epoch=1)


@pytest.fixture
def meetings() -> Iterator[tuple[RendezvousHost, RendezvousClient]]:
    warm_here().wait_ready()
    held = RendezvousHost(["lab1", "lab2"], at=(HOME, 0), token=TOKEN, epoch=1)
    joined = RendezvousClient("lab2", at=(HOME, held.port), token=TOKEN, epoch=1)
    yield held, joined
    joined.close()
    held.close()


def on_each(gangs: list[Gang], work: Callable[[Gang], Any]) -> list[Any]:
    """Bring all up at once, each in a thread, and have it do something; give what came of it, or the error."""
    came: list[Any] = [None] * len(gangs)

    def run(index: int) -> None:
        try:
            with gangs[index] as gang:
                came[index] = work(gang)
        except StokerError as error:
            came[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(gangs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return came


def gangs_of(meetings: tuple[Any, Any], **more: Any) -> list[Gang]:
    pairs = zip((1, 2), meetings, strict=True)
    return [Gang([RankConfig(0)] * count, rendezvous=one, timeout_s=20, **more) for count, one in pairs]


def test_ranks_of_both_owners_are_one_gang(meetings):
    first, second = on_each(
        gangs_of(meetings), lambda gang: (gang.run(functions.whoami), gang.run(functions.add, 1), gang.contexts)
    )
    assert [who[:2] for who in (*first[0], *second[0])] == [(0, 3), (1, 3), (2, 3)]
    assert [*first[1], *second[1]] == [6.0] * 3
    assert [context.rank for context in second[2]] == [1, 2]


def test_a_rank_that_fails_is_the_cause_on_both_and_nobody_is_left(meetings):
    pids: list[int] = []

    def fail(gang: Gang) -> None:
        pids.extend(context.pid for context in gang.contexts)
        gang.run(functions.fail_on, 2, "raise")

    came = on_each(gangs_of(meetings), fail)
    for error in came:
        assert isinstance(error, RankFailed)
        assert (error.rank, error.phase) == (2, "RUN")
        assert str(error).startswith("rank 2 (device 0 on lab2) failed in RUN after")
        assert "no such column" in error.traceback
    assert came[0].data["host"] == "lab2"
    assert len(pids) == 3
    assert not any(map(is_running, pids))


def test_an_owner_that_is_cancelled_ends_the_other_with_its_name(meetings):
    gangs = gangs_of(meetings)

    def cancel_or_hang(gang: Gang) -> None:
        if gang is gangs[1]:
            gang.cancel()
        gang.run(functions.hang)

    first, second = on_each(gangs, cancel_or_hang)
    assert second.code == "cancelled"
    assert isinstance(first, RendezvousFailed)
    assert str(first) == "lab2 failed: the gang was cancelled"


def test_a_rank_that_is_gone_when_the_store_is_known_is_left_to_its_process_to_tell():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, closing(one_host()) as rendezvous:
        rendezvous.publish("lab1:1")
        RendezvousLink(rendezvous, HostRanks(hosts=(HostPart(ranks=1),)), [ours], 1.0).attend(
            [RankSnapshot(rank=0, device="device 0", page=RankPage())]
        )


def test_one_host_alone_is_as_if_it_had_not_met():
    warm_here().wait_ready()
    with Gang([RankConfig(0), RankConfig(1)], rendezvous=one_host()) as gang:
        assert gang.run(functions.add, 1) == [3.0, 3.0]


def test_a_rank_in_this_very_process_meets_nobody():
    with closing(one_host()) as rendezvous, pytest.raises(BadGang, match="inline is for one host"):
        Gang([RankConfig(0)], mode="inline", rendezvous=rendezvous)


def test_ranks_are_told_the_interface_that_has_their_hosts_address():
    assert interface_of(HOME) == "lo"
    assert variables_for("203.0.113.1") == {}
    assert variables_for(HOME) == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    assert variables_for("") == {"GLOO_SOCKET_IFNAME": "lo"}
