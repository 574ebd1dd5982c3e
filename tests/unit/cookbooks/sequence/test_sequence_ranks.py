"""One training alone, and the same as two ranks over gloo."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.cookbooks.sequence.arrays import write_windows
from stoker.gang import Gang, RankConfig
from tests.later import imported_later

with imported_later("torch"):
    import torch

    from stoker.cookbooks.sequence.training import (
        SOLO,
        RankBatch,
        agree,
        world_here,
    )
    from tests.unit.cookbooks.sequence.two_ranks import SETTINGS, learn_everything, trained
    from tests.unit.cookbooks.sequence.walked_series import small_windows

FAMILIES = ("cnn", "gru", "lstm", "transformer", "masked")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks of a gang learned of every family."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in ("out", "windows"):
        (folder / name).mkdir()
    write_windows(small_windows(), folder / "windows")
    with Gang([RankConfig(0), RankConfig(1)]) as gang:
        return gang.run(learn_everything, folder, FAMILIES, timeout_s=120)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_learn_what_one_alone_does(ranks: list[dict[str, Any]], family: str) -> None:
    alone = trained(family, small_windows())
    assert ranks[0][family]["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert alone["losses"] != [alone["losses"][0]] * SETTINGS.epochs  # type: ignore[index]


def test_two_ranks_tell_classes_apart_as_one_alone_does(ranks: list[dict[str, Any]]) -> None:
    alone = trained("gru", small_windows(classes=True))
    assert ranks[0]["classes"]["losses"] == pytest.approx(alone["losses"], rel=1e-5)


def test_ranks_end_with_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    assert all(ranks[0][family] == ranks[1][family] for family in (*FAMILIES, "classes"))


def test_only_the_first_rank_of_a_stage_reports_and_all_give_what_it_wrote(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks[0]["stage"], ranks[1]["stage"]
    assert [event["step"] for event in first["said"] if "step" in event] == [1, 2]
    assert second["said"] == []
    assert first["is_written"]
    assert second["is_written"]


def test_the_last_batch_leaves_a_rank_with_nothing() -> None:
    assert small_windows().facts["counts"]["train"] % SETTINGS.batch == 1


def test_shares_of_a_batch_make_up_the_whole() -> None:
    examples = torch.arange(7)
    shares = [RankBatch(examples=examples, rank=rank, size=3, seed=0).mine(examples) for rank in range(3)]
    assert sorted(torch.cat(shares).tolist()) == list(range(7))


def test_without_a_gang_a_process_is_a_world_of_its_own() -> None:
    assert world_here() is SOLO
    agree(SOLO, "numbers", 4.0)


class Pair:
    """Two ranks, seen from the first; the other one has a number of its own."""

    rank = 0
    size = 2

    def __init__(self, other: float) -> None:
        self._other = other

    def all_reduce(self, values: Any) -> None:
        values[1] += self._other

    def barrier(self) -> None:
        raise AssertionError


@pytest.mark.parametrize(("mine", "other"), [(4, 5), (1_000_000, 1_000_001), (0, 1)])
def test_ranks_that_differ_are_told_before_they_train(mine: float, other: float) -> None:
    with pytest.raises(RuntimeError, match=f"the ranks have different numbers of examples; rank 0 has {mine}$"):
        agree(Pair(other), "numbers of examples", mine)


def test_ranks_that_are_alike_may_train() -> None:
    for number in (0.0, 3.25, 1_000_000.0):
        agree(Pair(number), "numbers", number)
