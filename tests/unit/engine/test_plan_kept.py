"""Results that an earlier job made and that serve as they are, under whatever key they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.authoring import Plan, PlanBuilder
from stoker.core.digests import Digest
from stoker.engine.preview import ForecastVerdict
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.engine.stages import NumberArgs, blob, blob_sum, number, volatile


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab") as made:
        yield made


def key_of(lab: Lab, plan: Plan, node: str) -> Digest:
    key = lab.run(plan)[node].key
    assert key is not None
    return key


def test_a_kept_result_serves_though_the_node_would_have_another_key(lab: Lab) -> None:
    old = key_of(lab, plan_of(number, NumberArgs(value=1)), "number")
    ran = lab.run(plan_of(number, NumberArgs(value=2)), kept={"number": old})
    assert (ran.endings, ran["number"].key) == ({"number": "hit"}, old)
    assert lab.value(ran, "number") == 1


def test_what_reads_a_kept_result_reads_that(lab: Lab) -> None:
    old = key_of(lab, plan_of(blob, NumberArgs(value=3)), "blob")
    new = PlanBuilder("sum").start(blob, NumberArgs(value=9)).then(blob_sum).finish()
    expected = PlanBuilder("sum").start(blob, NumberArgs(value=3)).then(blob_sum).finish()
    kept = lab.run(new, kept={"blob": old})
    assert kept.endings == {"blob": "hit", "blob-sum": "ran"}
    assert kept.digests["blob-sum"] == lab.run(expected).digests["blob-sum"]


def test_a_result_of_a_stage_that_is_never_cached_is_kept_if_that_is_asked_for(lab: Lab, tmp_path: Path) -> None:
    plan = plan_of(volatile, NumberArgs(value=1, ledger=str(tmp_path / "ledger")))
    key = key_of(lab, plan, "volatile")
    assert lab.run(plan, kept={"volatile": key}).endings == {"volatile": "hit"}
    assert len(lines_of(tmp_path / "ledger")) == 1
    assert lab.run(plan).endings == {"volatile": "ran"}


def test_a_kept_result_that_is_damaged_is_set_aside_told_and_made_again(lab: Lab) -> None:
    plan = plan_of(blob, NumberArgs(value=3))
    key = key_of(lab, plan, "blob")
    (path,) = lab.blob_paths(key)
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)
    ran = lab.run(plan, kept={"blob": key})
    assert ran.endings == {"blob": "ran"}
    assert ran.of_kind("cache_corrupt", "blob")


@pytest.mark.parametrize("is_pruned", [True, False])
def test_a_kept_result_that_is_not_there_is_made_again(lab: Lab, is_pruned: bool) -> None:
    plan = plan_of(blob, NumberArgs(value=3))
    key = key_of(lab, plan, "blob")
    if is_pruned:
        lab.prune(key)
    else:
        lab.record_path(key).unlink()
    assert lab.run(plan, kept={"blob": key}).endings == {"blob": "ran"}


def test_who_asks_for_a_rerun_gets_one_whatever_is_kept(lab: Lab) -> None:
    plan = plan_of(number, NumberArgs(value=1))
    key = key_of(lab, plan, "number")
    assert lab.run(plan, kept={"number": key}, rerun=frozenset({"number"})).endings == {"number": "ran"}


def test_a_preview_keeps_what_a_run_keeps(lab: Lab, tmp_path: Path) -> None:
    plan = plan_of(volatile, NumberArgs(value=1, ledger=str(tmp_path / "ledger")))
    key = key_of(lab, plan, "volatile")
    assert [one.verdict for one in lab.preview(plan).forecasts] == [ForecastVerdict.MISS]
    assert [one.verdict for one in lab.preview(plan, kept={"volatile": key}).forecasts] == [ForecastVerdict.HIT]


def test_a_record_says_which_attempt_made_it(lab: Lab) -> None:
    ran = lab.run(plan_of(number, NumberArgs(value=1)))
    record = ran["number"].products[0].record
    assert (record.body["attempt"], record.body["node"]) == ("run-1", "number")
