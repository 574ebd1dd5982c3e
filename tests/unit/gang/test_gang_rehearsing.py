"""Is a machine fit for gangs: what is tried, and how it goes, with real ranks."""

from __future__ import annotations

import re

import pytest

from stoker.core.device import Backend, Device, TriState, TriStateAnswer
from stoker.core.errors import MissingExtra, RankTimeout, WorkFailed
from stoker.gang import gang_check, owner
from stoker.gang.gang_check import COLLECTIVE, GangSelfTest, check_sums, choose, rehearse
from stoker.gang.starters import warm_here
from tests.unit.gang import gang_functions as functions

PHASES = ["FORKED", "DEVICE", "STORE", "COMM", "WINDOW", "STAGING"]


def gpus(count: int) -> tuple[Device, ...]:
    yes = TriStateAnswer(verdict=TriState.YES)
    return tuple(
        Device(
            uuid=f"GPU-{index}", backend=Backend.CUDA, name="H200", index=index, installed=yes, visible=yes, usable=yes
        )
        for index in range(count)
    )


@pytest.mark.parametrize(
    ("wanted", "count", "tried"),
    [
        (None, 0, "2 ranks with gloo on the CPU (no usable GPU on this machine)"),
        (4, 0, "4 ranks with gloo on the CPU (no usable GPU on this machine)"),
        (None, 4, "4 ranks with NCCL, one GPU for each"),
        (2, 4, "2 ranks with NCCL, one GPU for each"),
        (1, 1, "1 rank with NCCL, one GPU for each"),
        (None, 1, "2 ranks with gloo on the CPU (NCCL needs one GPU for each rank, and there is 1 GPU)"),
        (3, 2, "3 ranks with gloo on the CPU (NCCL needs one GPU for each rank, and there are 2 GPUs)"),
    ],
)
def test_it_is_tried_on_gpus_where_every_rank_has_its_own(wanted, count, tried):
    assert str(choose(wanted, gpus(count))) == tried


def test_two_ranks_come_up_and_add_up_with_the_time_of_every_phase():
    rehearsal = rehearse(choose(2, ()))
    assert rehearsal.error is None
    assert [list(one.phases_s) for one in rehearsal.ranks] == [[*PHASES, COLLECTIVE]] * 2
    told = rehearsal.to_dict()
    assert (told["is_fit"], told["error"], len(told["by_rank"])) == (True, None, 2)
    assert 0 < told["up_s"] < 60


def test_a_silent_rank_is_named_with_its_device_and_phase(monkeypatch):
    monkeypatch.setenv(functions.VICTIM, "1 COMM hang")
    warm_here().wait_ready()
    rehearsal = rehearse(choose(2, ()), timeout_s=2.0, on_phase=f"{functions.__name__}:fault_in_phase")
    assert isinstance(rehearsal.error, RankTimeout)
    assert re.match(r"rank 1 \(device 1\) is silent in COMM after \d\.\d s\b", rehearsal.error.message)
    assert rehearsal.up_s is None
    assert [list(one.phases_s) for one in rehearsal.ranks] == [PHASES[:3]] * 2


def test_a_wrong_sum_is_told_with_its_rank():
    right = [3.0 + 2 * place for place in range(1024)]
    check_sums(0, right, 2)
    with pytest.raises(WorkFailed, match=r"rank 1 \(device 1\) added up wrongly: 4\.0 at 0, and it is 3\.0"):
        check_sums(1, [4.0, *right[1:]], 2)


def test_without_torch_the_finding_names_the_extra(monkeypatch):
    for module in (owner, gang_check):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    rehearsal: GangSelfTest = rehearse(choose(2, ()))
    assert isinstance(rehearsal.error, MissingExtra)
    assert "stoker[torch]" in rehearsal.error.hint
    assert rehearsal.to_dict()["is_fit"] is False
