from __future__ import annotations

from typing import Any

import pytest

from stoker.core.errors import BadGang
from stoker.gang import Gang
from stoker.gang.mailbox import Phase
from stoker.gang.rank_config import MOST_RANKS, Buffer, RankConfig, check


def faults(configs, **options) -> list[str]:
    with pytest.raises(BadGang) as raised:
        check(configs, **options)
    return [str(fault) for fault in raised.value.faults]


def wrong(value: object) -> Any:
    """Return what a type checker would not let through."""
    return value


def of_buffers(*buffers, **more) -> list[RankConfig]:
    return [RankConfig(0, buffers, **more)]


def test_a_good_gang_has_no_faults():
    check(
        [
            RankConfig(
                0, [Buffer("x", 1 << 20), Buffer("y", 8, dtype="float64", load_from_host=True)], inputs={"y": b"8" * 8}
            ),
            RankConfig(1, window_bytes=4096),
            RankConfig(1),
        ],
        nranks=3,
        device_ids=[0, 1],
        memory_bytes=1 << 30,
    )


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ([], "ranks: there are none (give one RankConfig per rank)"),
        ([RankConfig(0)] * (MOST_RANKS + 1), f"ranks: {MOST_RANKS + 1} are more than {MOST_RANKS}"),
        ([7], "ranks[0]: is a int (write RankConfig(device_id=…))"),
        ([RankConfig(-1)], "ranks[0].device_id: -1 is not the number of a device"),
        ([RankConfig(True)], "ranks[0].device_id: True is not the number of a device"),
        ([RankConfig(wrong("0"))], "ranks[0].device_id: '0' is not the number of a device"),
        (of_buffers(Buffer("", 8)), "ranks[0].buffers[0].name: is empty"),
        (of_buffers(Buffer("  ", 8)), "ranks[0].buffers[0].name: is empty"),
        (of_buffers(Buffer(wrong(3), 8)), "ranks[0].buffers[0].name: is empty"),
        (of_buffers(Buffer("a\n", 8)), "ranks[0].buffers[0].name: 'a\\n' is too long, or not printable"),
        (of_buffers(Buffer("x", 8), Buffer("x", 8)), "ranks[0].buffers[1].name: 'x' is there already"),
        (of_buffers(Buffer("x", 0)), "ranks[0].buffers[0].nbytes: 0 is not a size"),
        (of_buffers(Buffer("x", -5)), "ranks[0].buffers[0].nbytes: -5 is not a size"),
        (of_buffers(Buffer("x", wrong(1.5))), "ranks[0].buffers[0].nbytes: 1.5 is not a size"),
        (of_buffers(Buffer("x", 8, dtype="flaot32")), "ranks[0].buffers[0].dtype: 'flaot32' is no type"),
        (of_buffers(Buffer("x", 6, dtype="float32")), "6 bytes are no whole number of float32 (4)"),
        (of_buffers("x"), "ranks[0].buffers[0]: is a str (write Buffer(name, nbytes))"),
        (of_buffers(*[Buffer(f"b{i}", 1) for i in range(129)]), "ranks[0].buffers: 129 buffers are more than 128"),
        (of_buffers(Buffer("x", 8), window_bytes=0), "ranks[0].window_bytes: 0 is not a size"),
        (of_buffers(Buffer("x", 8), Buffer("y", 8), window_bytes=263), "263 bytes are too few: 'y' ends past them"),
        (of_buffers(Buffer("x", 8, load_from_host=True)), "nothing for 'x', which has load_from_host"),
        (of_buffers(Buffer("x", 8, load_from_host=True), inputs={"x": b"123"}), "3 bytes for a buffer of 8"),
        (of_buffers(Buffer("x", 8, load_from_host=True), inputs={"x": 8}), "a int has no buffer of bytes"),
        (
            of_buffers(Buffer("x", 8, load_from_host=True), inputs={"x": memoryview(bytes(16))[::2]}),
            "a memoryview has no buffer of bytes",
        ),
        (of_buffers(Buffer("x", 8), inputs=5), "ranks[0].inputs: is a int (give bytes by the names of buffers)"),
        ([RankConfig(0, wrong(Buffer("x", 8)))], "ranks[0].buffers: is a Buffer (write [Buffer(name, nbytes)])"),
        (of_buffers(Buffer(wrong(["x"]), 8)), "ranks[0].buffers[0].name: is empty"),
        (of_buffers(Buffer("x", 8, dtype=wrong(["a"]))), "ranks[0].buffers[0].dtype: ['a'] is no type"),
        ([RankConfig(2**31)], "ranks[0].device_id: 2147483648 is not the number of a device"),
        (of_buffers(Buffer("x", 8), inputs={"x": b"12345678"}), "no buffer of that name has load_from_host"),
    ],
)  # fmt: skip
def test_each_fault_is_told_with_its_place(configs, said):
    (told,) = faults(configs)
    assert said in told


def test_all_faults_are_told_at_once():
    told = faults([RankConfig(9, [Buffer("", 0)]), RankConfig(-1), "x"], nranks=4, device_ids=[0])
    assert len(told) == 6


def test_counts_that_differ_are_told_with_both_numbers():
    assert faults([RankConfig(0)], nranks=2) == ["ranks: 2 ranks and 1 configs (give exactly one config per rank)"]


def test_a_device_that_does_not_exist_is_told_with_those_that_do():
    assert faults([RankConfig(2)], device_ids=[0, 1]) == [
        "ranks[0].device_id: device 2 does not exist (there are: 0, 1)"
    ]


def test_windows_larger_than_the_machine_are_refused_before_anything_is_made():
    (told,) = faults(of_buffers(Buffer("x", 200 << 30)), memory_bytes=24 << 30)
    assert str(200 << 30) in told


def test_a_window_of_exactly_what_is_needed_will_do():
    check(of_buffers(Buffer("x", 8), Buffer("y", 8), window_bytes=264))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "glooo"}, "backend: 'glooo' is none of gloo, nccl"),
        ({"mode": "thread"}, "mode: 'thread' is none of auto, zygote, exec, inline"),
        ({"comm": "later"}, "comm: 'later' is none of eager, lazy"),
        ({"device_kind": "tpu"}, "device_kind: 'tpu' is none of cpu, cuda"),
        ({"timeout_s": 0}, "timeout_s: 0 is not a duration"),
        ({"timeout_s": "soon"}, "timeout_s: 'soon' is not a duration"),
        ({"grace_s": float("inf")}, "grace_s: inf is not a duration"),
        ({"nranks": 3}, "ranks: 3 ranks and 2 configs"),
        ({"phase_limits_s": {"COMM": 3}}, "phase_limits_s['COMM']: is no phase (write Phase.COMM)"),
        ({"phase_limits_s": {Phase.COMM: 0}}, "0 is not a duration"),
        ({"phase_limits_s": 3}, "phase_limits_s: is a int"),
        ({"mode": "inline"}, "mode: inline is for one rank, and there are 2"),
        ({"backend": "nccl", "device_kind": "cpu"}, "backend: nccl needs GPUs"),
        ({"device_kind": "cuda", "devices": []}, "device 0 does not exist (there are: none)"),
    ],
)
def test_what_a_gang_is_told_beside_its_ranks_is_checked_when_it_is_made(options, said):
    with pytest.raises(BadGang, match="invalid gang") as raised:
        Gang([RankConfig(0), RankConfig(1)], **options)
    assert any(said in str(fault) for fault in raised.value.faults)
    assert raised.value.exit_code == 52


def test_ranks_that_are_no_list_are_refused():
    with pytest.raises(BadGang, match="ranks: is a int"):
        Gang(wrong(4))
