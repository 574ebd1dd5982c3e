"""Who sat beside whom in a shared process, and what is kept of it."""

from __future__ import annotations

import pytest

from stoker.engine.runners.shared.shared_process import MemberUsageTracker
from stoker.engine.runners.stage_runner import MemberUsage, read_member_usage


def test_a_member_is_told_with_whom_it_sat_and_how_many_there_were_at_once() -> None:
    stays = MemberUsageTracker(7)
    stays.came(0, "a/train")
    stays.came(1, "b/train")
    first = stays.left(0)
    stays.came(0, "c/train")
    assert first == MemberUsage(process=7, members=2, others=1, named=("b/train",))
    assert stays.left(1) == MemberUsage(process=7, members=2, others=2, named=("a/train", "c/train"))
    assert stays.left(0) == MemberUsage(process=7, members=2, others=1, named=("b/train",))


def test_of_many_others_the_first_are_named_and_all_are_counted() -> None:
    stays = MemberUsageTracker(7)
    for number in range(40):
        stays.came(number, f"job/{number}\n" * 9)
    stay = stays.left(0)
    assert (stay.members, stay.others, len(stay.named)) == (40, 39, 16)
    assert not any("\n" in name for name in stay.named)
    assert read_member_usage(stay.to_json()) == stay


@pytest.mark.parametrize("told", [None, [], {}, {"process": 1, "members": True, "others": 1, "with": []}])
def test_what_is_no_stay_is_none(told: object) -> None:
    assert read_member_usage(told) is None
