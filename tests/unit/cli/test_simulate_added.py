"""Machines that `simulate --live --add` names: bounded, whatever is written."""

from __future__ import annotations

import pytest

from stoker.cli.simulate import MOST_ADDED, machines_of
from stoker.core.errors import Usage
from stoker.scheduler.snapshot import Snapshot

NOTHING = Snapshot(now_s=0.0)


def test_machines_are_added_by_kind_and_number() -> None:
    assert [offer.node for offer in machines_of("rtx-4090:2", NOTHING)] == ["added-rtx-4090-1", "added-rtx-4090-2"]


@pytest.mark.parametrize(
    "text",
    [
        "x:1000000",
        "rtx-4090:1000000",
        f"rtx-4090:{'9' * 5000}",
        "rtx-4090:-1",
        "rtx-4090:0",
        "rtx-4090:nan",
        "x" * 9999,
    ],
    ids=lambda text: text[:20],
)
def test_what_names_no_number_of_machines_is_refused_in_a_line_with_a_hint(text: str) -> None:
    with pytest.raises(Usage) as refused:
        machines_of(text, NOTHING)
    assert refused.value.hint
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 20_100


def test_many_parts_together_make_no_more_machines_than_one_may() -> None:
    made = ",".join([f"rtx-4090:{MOST_ADDED}"] * 1000)
    with pytest.raises(Usage, match="the maximum is 10,000 machines"):
        machines_of(made, NOTHING)
