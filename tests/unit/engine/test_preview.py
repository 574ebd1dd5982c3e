from __future__ import annotations

from pathlib import Path

from stoker.authoring import InputPath, PlanBuilder
from stoker.engine.plan import Plan
from stoker.engine.preview import ForecastVerdict, PlanPreview
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.engine.stages import (
    CountArgs,
    FileArgs,
    NumberArgs,
    add,
    blob,
    blob_sum,
    count,
    double,
    number,
    pair,
    parity,
    read,
    volatile,
)


def chain(value: int = 1, seed: int = 0, ledger: str = "") -> Plan:
    start = PlanBuilder("chain").start(blob, NumberArgs(value=seed, ledger=ledger))
    middle = start.then(blob_sum, NumberArgs(value=value, ledger=ledger))
    return middle.then(double, NumberArgs(ledger=ledger)).finish()


def fan(n: int, value: int = 0) -> Plan:
    return PlanBuilder("fan").start(count, CountArgs(n=n)).each(double, NumberArgs(value=value)).merge(add).finish()


def verdicts(seen: PlanPreview) -> dict[str, str]:
    return {one.node: str(one.verdict) for one in seen.forecasts}


def whys(seen: PlanPreview) -> dict[str, str]:
    return {one.node: one.why for one in seen.forecasts}


def test_a_preview_runs_nothing_and_writes_nothing(lab: Lab, ledger: str) -> None:
    before = sorted(str(path) for path in Path(lab.store.places.root).rglob("*"))
    seen = lab.preview(chain(ledger=ledger))
    assert verdicts(seen) == {"blob": "miss", "blob-sum": "unknown", "double": "unknown"}
    assert whys(seen) == {
        "blob": "it has not run before",
        "blob-sum": "depends on what blob will give",
        "double": "depends on what blob-sum will give",
    }
    assert seen.estimate_s is None
    assert lines_of(ledger) == []
    after = sorted(str(path) for path in Path(lab.store.places.root).rglob("*"))
    assert [path for path in after if "memo" not in path] == [path for path in before if "memo" not in path]


def test_what_is_known_is_a_hit_with_its_key(lab: Lab) -> None:
    ran = lab.run(chain())
    seen = lab.preview(chain())
    assert verdicts(seen) == dict.fromkeys(("blob", "blob-sum", "double"), "hit")
    assert {one.node: one.key for one in seen.forecasts} == {name: node.key for name, node in ran.result.nodes.items()}
    assert seen.count(ForecastVerdict.HIT) == 3
    assert seen.estimate_s is None


def test_a_change_is_told_field_by_field_with_what_it_will_cost(lab: Lab) -> None:
    lab.run(chain(value=1))
    seen = lab.preview(chain(value=2))
    assert verdicts(seen) == {"blob": "hit", "blob-sum": "miss", "double": "unknown"}
    miss = seen.forecasts[1]
    assert miss.why == "changed: args.value: 1 → 2"
    assert [(one.field, one.before, one.after) for one in miss.changes] == [("args.value", 1, 2)]
    assert miss.estimate_s is not None
    assert seen.estimate_s is not None
    assert seen.estimate_s > miss.estimate_s


def test_a_file_that_changed_is_told(lab: Lab, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("1")
    plan = plan_of(read, FileArgs(path=InputPath(str(rows))))
    lab.run(plan)
    rows.write_text("2")
    assert "args.path: content sha256:" in whys(lab.preview(plan))["read"]


def test_a_rerun_that_will_be_asked_for_is_foreseen(lab: Lab) -> None:
    lab.run(chain())
    seen = lab.preview(chain(), rerun=frozenset({"blob-sum"}))
    assert verdicts(seen) == {"blob": "hit", "blob-sum": "miss", "double": "unknown"}
    assert whys(seen)["blob-sum"] == "a rerun was asked for"


def test_a_stage_that_is_never_cached_says_so(lab: Lab) -> None:
    plan = plan_of(volatile)
    lab.run(plan)
    assert whys(lab.preview(plan)) == {"volatile": "this stage is never cached"}


def test_bytes_that_are_gone_are_no_matter_while_nobody_reads_them(lab: Lab) -> None:
    first = lab.run(chain())
    lab.prune(first["blob"].key)
    seen = lab.preview(chain())
    assert verdicts(seen)["blob"] == "hit"
    assert "bytes were deleted" in whys(seen)["blob"]


def test_bytes_that_are_gone_and_read_again_are_foreseen(lab: Lab) -> None:
    first = lab.run(chain(value=1))
    lab.prune(first["blob"].key)
    seen = lab.preview(chain(value=2))
    assert verdicts(seen) == {"blob": "miss", "blob-sum": "miss", "double": "unknown"}
    assert whys(seen)["blob"] == "its bytes were pruned and needed again"
    assert lab.run(chain(value=2)).endings["blob"] == "ran"


def test_bytes_that_are_gone_and_may_be_read_make_a_hit_uncertain(lab: Lab) -> None:
    """What reads them depends on a miss, so that nobody can tell yet whether it will run."""

    def plan(value: int) -> Plan:
        kept = PlanBuilder("maybe").start(number, NumberArgs(value=1), id="kept")
        changed = kept.builder.start(number, NumberArgs(value=value), id="changed").then(parity)
        return changed.builder.add(add, feeds=[(None, kept), (None, changed)]).finish()

    first = lab.run(plan(3))
    lab.prune(first["kept"].key)
    seen = lab.preview(plan(5))
    assert verdicts(seen) == {"kept": "unknown", "changed": "miss", "parity": "unknown", "add": "unknown"}
    assert whys(seen)["kept"] == "result known, bytes deleted: it runs again if add does"
    assert lab.run(plan(5)).endings["kept"] == "hit"
    assert lab.run(plan(4)).endings["kept"] == "ran"


def test_a_whole_line_of_lost_ancestors_is_foreseen(lab: Lab) -> None:
    first = lab.run(chain())
    lab.prune(*(first[name].key for name in ("blob", "blob-sum", "double")))
    assert set(verdicts(lab.preview(chain())).values()) == {"miss"}
    assert set(lab.run(chain()).endings.values()) == {"ran"}


def test_a_fan_out_over_any_number_of_items_is_foreseen(lab: Lab) -> None:
    for n in (0, 1, 2, 5):
        lab.run(fan(n))
        assert set(verdicts(lab.preview(fan(n))).values()) == {"hit"}
        seen = lab.preview(fan(n, value=7))
        assert verdicts(seen)["double"] == ("miss" if n else "hit")
        if n:
            assert whys(seen)["double"].startswith(f"{n} of {n} items, the first because: changed: args.value: 0 → 7")


def test_only_the_new_items_of_a_fan_out_miss(lab: Lab) -> None:
    lab.run(fan(3))
    plan = PlanBuilder("fan").start(count, CountArgs(n=5)).finish()
    lab.run(plan)
    seen = lab.preview(fan(5))
    assert whys(seen)["double"].startswith("2 of 5 items")
    assert seen.forecasts[1].estimate_s is not None


def test_lost_bytes_of_one_item_are_foreseen(lab: Lab) -> None:
    first = lab.run(fan(3))
    lab.prune(first["double[1]"].key)
    seen = lab.preview(PlanBuilder("fan").start(count).each(double).merge(add, NumberArgs(value=9)).finish())
    assert verdicts(seen) == {"count": "hit", "double": "miss", "add": "miss"}
    assert whys(seen)["double"].startswith("1 of 3 items")


def test_lists_that_do_not_match_are_foreseen(lab: Lab) -> None:
    builder = PlanBuilder("z")
    two, three = builder.start(count, CountArgs(n=2), id="two"), builder.start(count, CountArgs(n=3), id="three")
    plan = two.each(pair, right=three).finish()
    lab.run(plan)
    assert "lists of different lengths" in whys(lab.preview(plan))["pair"]


def test_a_damaged_result_is_foreseen(lab: Lab) -> None:
    ran = lab.run(plan_of(number, NumberArgs(value=3)))
    path = lab.record_path(ran["number"].key)
    path.chmod(0o644)
    path.write_bytes(b"junk")
    assert "damaged" in whys(lab.preview(plan_of(number, NumberArgs(value=3))))["number"]
