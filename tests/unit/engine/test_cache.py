"""The cache through whole runs: what hits, what misses, and what happens when what was kept is damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import InputPath, PlanBuilder
from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.core.errors import NoPermission
from stoker.core.events import Kinds
from stoker.engine.plan import Plan
from stoker.engine.result_cache import Hit, Miss
from stoker.store.local_store import RecordHit
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.engine.stages import (
    FileArgs,
    NumberArgs,
    add,
    blob,
    blob_sum,
    count,
    double,
    number,
    parity,
    process_read,
    read,
    unstable,
    volatile,
)


def chain(value: int, ledger: str, *, seed: int = 0) -> Plan:
    """A blob, and a number made of it."""
    start = PlanBuilder("chain").start(blob, NumberArgs(value=seed, ledger=ledger))
    return start.then(blob_sum, NumberArgs(value=value, ledger=ledger)).finish()


# --- hits and misses -----------------------------------------------------------------------------


def test_what_was_made_is_not_made_again(lab: Lab, ledger: str) -> None:
    plan = chain(1, ledger)
    first = lab.run(plan)
    second = lab.run(plan)
    assert first.endings == {"blob": "ran", "blob-sum": "ran"}
    assert second.endings == {"blob": "hit", "blob-sum": "hit"}
    assert first.digests == second.digests
    assert len(lines_of(ledger)) == 2
    assert [event["node"] for event in second.of_kind("stage_skipped")] == ["blob", "blob-sum"]


def test_another_process_finds_it_too(lab: Lab, ledger: str) -> None:
    lab.run(chain(1, ledger))
    with lab.again() as later:
        assert later.run(chain(1, ledger)).endings == {"blob": "hit", "blob-sum": "hit"}


def test_only_what_a_change_reaches_runs_again(lab: Lab, ledger: str) -> None:
    lab.run(chain(1, ledger))
    second = lab.run(chain(2, ledger))
    assert second.endings == {"blob": "hit", "blob-sum": "ran"}
    assert second.of_kind("stage_begin")[0]["why"] == "changed: args.value: 1 → 2"
    assert second.of_kind("stage_begin")[0]["changes"] == [{"field": "args.value", "before": 1, "after": 2}]


def test_a_runtime_argument_does_not_make_it_run_again(lab: Lab, ledger: str) -> None:
    lab.run(chain(1, ledger))
    assert lab.run(chain(1, f"{ledger}-other")).result.hits == 2


def test_an_input_that_comes_out_the_same_cuts_the_work_off(lab: Lab, ledger: str) -> None:
    def plan(value: int) -> Plan:
        start = PlanBuilder("cut").start(number, NumberArgs(value=value))
        return start.then(parity).then(double, NumberArgs(ledger=ledger)).finish()

    lab.run(plan(3))
    second = lab.run(plan(5))
    assert second.endings == {"number": "ran", "parity": "ran", "double": "hit"}
    assert lines_of(ledger) == ["double 0"]


def test_the_content_of_a_file_decides_and_not_its_time(lab: Lab, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("1")
    plan = plan_of(read, FileArgs(path=InputPath(str(rows))))
    lab.run(plan)
    os.utime(rows, (1, 1))
    assert lab.run(plan).endings == {"read": "hit"}
    rows.write_text("2")
    assert lab.run(plan).endings == {"read": "ran"}


def test_only_what_may_be_read_for_a_job_is_read(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "came").mkdir()
    came, other = tmp_path / "came" / "rows", tmp_path / "came-not"
    for path in (came, other):
        path.write_text("1")
    lab.cache.readable = (str(tmp_path / "came"),)
    assert lab.run(plan_of(read, FileArgs(path=InputPath(str(came))))).endings == {"read": "ran"}
    for elsewhere in (str(other), f"{tmp_path}/came/../came-not"):
        with pytest.raises(NoPermission, match="did not come with the job"):
            lab.cache.digest_of(elsewhere)
        assert lab.run(plan_of(read, FileArgs(path=InputPath(elsewhere)))).endings != {"read": "ran"}


def test_the_code_of_a_stage_decides(lab: Lab) -> None:
    plan = plan_of(number, NumberArgs(value=1))
    action = lab.cache.action(plan.nodes[0], {})
    assert action.facts.code
    assert isinstance(lab.cache.look(plan.nodes[0].stage, action.key()), Miss)
    lab.run(plan)
    assert isinstance(lab.cache.look(plan.nodes[0].stage, action.key()), Hit)


def test_a_volatile_stage_is_never_skipped(lab: Lab, ledger: str) -> None:
    plan = plan_of(volatile, NumberArgs(value=1, ledger=ledger))
    for _ in range(3):
        ran = lab.run(plan)
        assert ran.endings == {"volatile": "ran"}
        assert ran.of_kind("stage_begin")[0]["why"] == "this stage is never cached"
    assert len(lines_of(ledger)) == 3


def test_what_a_volatile_stage_gives_is_an_input_like_any_other(lab: Lab, ledger: str) -> None:
    plan = PlanBuilder("v").start(volatile, NumberArgs(value=1)).then(double, NumberArgs(ledger=ledger)).finish()
    lab.run(plan)
    assert lab.run(plan).endings == {"volatile": "ran", "double": "hit"}


# --- asked for -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["blob", "test/blob"])
def test_a_rerun_of_a_stage_makes_only_what_changes_below_it_run(lab: Lab, ledger: str, asked: str) -> None:
    lab.run(chain(1, ledger))
    second = lab.run(chain(1, ledger), rerun=frozenset({asked}))
    assert second.endings == {"blob": "ran", "blob-sum": "hit"}
    assert second.of_kind("stage_begin")[0]["why"] == "a rerun was asked for"
    assert not second.of_kind("cache_differs")


def test_a_rerun_that_gives_something_else_replaces_what_was_there(lab: Lab, ledger: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("")
    start = PlanBuilder("u").start(unstable, FileArgs(path=InputPath(str(path)), ledger=ledger))
    plan = start.then(double).finish()
    first = lab.run(plan)
    second = lab.run(plan, rerun=frozenset({"unstable"}))
    assert second.endings == {"unstable": "ran", "double": "ran"}
    (told,) = second.of_kind("cache_differs")
    assert (told["before"], told["kept"]) == (first.digests["unstable"][0], second.digests["unstable"][0])
    assert told["expected"] is True
    assert lab.run(plan).digests == second.digests


def test_a_rerun_of_one_instance_of_a_fan_out_runs_only_that(lab: Lab) -> None:
    plan = PlanBuilder("f").start(count).each(double).finish()
    lab.run(plan)
    second = lab.run(plan, rerun=frozenset({"double[1]"}))
    assert [name for name, ending in second.endings.items() if ending == "ran"] == ["double[1]", "double"]


def test_twins_are_rerun_once(lab: Lab, ledger: str) -> None:
    builder = PlanBuilder("twins")
    tips = [builder.start(number, NumberArgs(value=7, ledger=ledger)) for _ in range(3)]
    plan = builder.add(add, feeds=[(None, tip) for tip in tips]).finish()
    lab.run(plan)
    lab.run(plan, rerun=frozenset({"test/number"}))
    assert len(lines_of(ledger)) == 2


# --- writers -------------------------------------------------------------------------------------


def commit(lab: Lab, value: str, *, force: bool = False) -> tuple[str, Digest | None]:
    """Commit a result of one and the same action, as another process would."""
    action = lab.cache.action(plan_of(number, NumberArgs(value=1)).nodes[0], {})
    staging = lab.store.new_staging("test.writer")
    Path(staging, "value.json").write_text(value)
    committed = lab.cache.commit(action, action.key(), staging, facts={}, force=force, is_unwanted=lambda: False)
    return lab.store.read_bytes(committed.record, "value.json").decode(), committed.differs_from


def test_the_first_writer_wins_and_a_different_second_result_is_reported(lab: Lab) -> None:
    assert commit(lab, "1") == ("1", None)
    assert commit(lab, "1") == ("1", None)
    kept, differs_from = commit(lab, "2")
    assert kept == "1"
    assert differs_from is not None


def test_a_forced_writer_replaces_and_says_what_was_there(lab: Lab) -> None:
    commit(lab, "1")
    kept, differs_from = commit(lab, "2", force=True)
    assert kept == "2"
    assert differs_from is not None
    assert commit(lab, "1")[0] == "2"


def test_a_second_result_that_differs_is_told_in_the_journal(lab: Lab, ledger: str, tmp_path: Path) -> None:
    """Two runs of one key at once, as after a lease that was taken over: the second finds the first's result."""
    path = tmp_path / "x"
    path.write_text("")
    plan = plan_of(unstable, FileArgs(path=InputPath(str(path)), ledger=ledger))
    first = lab.run(plan)
    kept = lab.record_path(first["unstable"].key)
    aside = kept.with_suffix(".aside")
    kept.rename(aside)

    real = lab.cache.commit

    def late(*args: object, **options: object) -> object:
        aside.rename(kept)
        return real(*args, **options)  # type: ignore[arg-type]

    lab.cache.commit = late  # type: ignore[method-assign, assignment]
    second = lab.run(plan)
    (told,) = second.of_kind("cache_differs")
    assert told["expected"] is True
    assert second.digests == first.digests
    assert told["kept"] == told["before"] == first.digests["unstable"][0]
    assert told["ours"] != told["kept"]


# --- damage --------------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.chmod(0o644)
    if how == "flip":
        path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    elif how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "delete"])
def test_a_damaged_record_is_a_miss_and_is_set_aside(lab: Lab, ledger: str, how: str) -> None:
    first = lab.run(chain(1, ledger))
    damage(lab.record_path(first["blob-sum"].key), how)
    second = lab.run(chain(1, ledger))
    assert second.endings == {"blob": "hit", "blob-sum": "ran"}
    assert second.digests == first.digests
    if how != "delete":
        assert "damaged" in second.of_kind("stage_begin")[0]["why"]
        assert len(second.of_kind("cache_corrupt")) == 1
        assert os.listdir(lab.store.places.quarantine)
    else:
        assert second.of_kind("stage_begin")[0]["why"] == "it ran before, but its result was deleted"


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "delete"])
def test_a_damaged_blob_that_nobody_reads_is_left_alone(lab: Lab, ledger: str, how: str) -> None:
    first = lab.run(chain(1, ledger))
    (path,) = lab.blob_paths(first["blob"].key)
    damage(path, how)
    with lab.again() as later:
        second = later.run(chain(1, ledger))
    assert second.endings == {"blob": "hit", "blob-sum": "hit"}
    assert second["blob"].has_bytes is False


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "delete"])
def test_a_damaged_blob_that_is_read_is_made_again(lab: Lab, ledger: str, how: str) -> None:
    first = lab.run(chain(1, ledger))
    (path,) = lab.blob_paths(first["blob"].key)
    damage(path, how)
    with lab.again() as later:
        second = later.run(chain(2, ledger))
        assert second.endings == {"blob": "ran", "blob-sum": "ran"}
        assert second.digests["blob"] == first.digests["blob"]
        assert [event["node"] for event in second.of_kind("stage_rewind")] == ["blob"]
        assert "lost" in second.of_kind("stage_begin", "blob")[0]["why"]
        assert bool(os.listdir(later.store.places.quarantine)) == (how != "delete")


def test_lost_bytes_make_only_the_ancestors_that_are_needed_run(lab: Lab, ledger: str) -> None:
    def plan(last: int) -> Plan:
        start = PlanBuilder("deep").start(blob, NumberArgs(value=1, ledger=ledger))
        middle = start.then(blob_sum, NumberArgs(value=1, ledger=ledger), id="middle")
        side = start.then(blob_sum, NumberArgs(value=2, ledger=ledger), id="side")
        return (
            middle.then(double, NumberArgs(value=last, ledger=ledger), id="end")
            .builder.add(add, NumberArgs(value=last), id="all", feeds=[(None, middle), (None, side)])
            .finish()
        )

    first = lab.run(plan(0))
    lab.prune(first["blob"].key)
    second = lab.run(plan(1))
    assert second.endings == {"blob": "hit", "middle": "hit", "side": "hit", "end": "ran", "all": "ran"}
    lab.prune(first["blob"].key, first["middle"].key)
    third = lab.run(plan(2))
    assert third.endings == {"blob": "ran", "middle": "ran", "side": "hit", "end": "ran", "all": "ran"}
    assert {event["node"]: event["wanted_by"] for event in third.of_kind("stage_rewind")} == {
        "middle": "end",
        "blob": "middle",
    }


def test_many_nodes_that_want_the_same_lost_bytes_bring_them_back_once(lab: Lab, ledger: str) -> None:
    def plan(offset: int) -> Plan:
        start = PlanBuilder("wide").start(blob, NumberArgs(value=1, ledger=ledger))
        return start.fork(*((blob_sum, NumberArgs(value=offset + index)) for index in range(6))).merge(add).finish()

    first = lab.run(plan(0))
    lab.prune(first["blob"].key)
    second = lab.run(plan(100))
    assert second.result.error is None
    assert lines_of(ledger) == ["blob 1", "blob 1"]
    assert len(second.of_kind("stage_rewind")) == 1


def test_a_tombstone_is_a_hit_until_its_bytes_are_needed(lab: Lab, ledger: str) -> None:
    first = lab.run(chain(1, ledger))
    lab.prune(first["blob"].key)
    assert lab.run(chain(1, ledger)).endings == {"blob": "hit", "blob-sum": "hit"}
    second = lab.run(chain(2, ledger))
    assert second.endings == {"blob": "ran", "blob-sum": "ran"}
    assert second.of_kind("stage_begin", "blob")[0]["why"] == "its bytes were pruned and needed again"
    assert lab.run(chain(3, ledger)).endings == {"blob": "hit", "blob-sum": "ran"}


def test_a_pruned_result_that_a_person_wants_is_made_again(lab: Lab, ledger: str) -> None:
    first = lab.run(chain(1, ledger))
    lab.prune(first["blob"].key, first["blob-sum"].key)
    assert lab.run(chain(1, ledger)).endings == {"blob": "ran", "blob-sum": "ran"}


def test_bytes_that_vanish_while_a_stage_reads_them_are_made_again(lab: Lab, ledger: str) -> None:
    """The look-up says yes, and then somebody deletes the blob: the stage fails, its producer runs, it runs again."""
    lab.run(chain(1, ledger))
    plan = PlanBuilder("chain").start(blob, NumberArgs(ledger=ledger)).then(process_read, NumberArgs(value=5)).finish()
    executor, status = lab.prepare(plan)
    (path,) = lab.blob_paths(lab.cache.action(plan.nodes[0], {}).key())
    hold = status.hold

    def hold_and_delete(kind: str, **fields: Any) -> None:
        hold(kind, **fields)
        if (kind, fields["node"]) == (Kinds.STAGE_BEGIN, "process-read") and len(lines_of(ledger)) == 2:
            path.unlink()

    status.hold = hold_and_delete  # type: ignore[method-assign]
    result = executor.run()
    status.close()
    assert result.error is None
    assert {name: str(node.ending) for name, node in result.nodes.items()} == {"blob": "ran", "process-read": "ran"}
    assert lines_of(ledger).count("blob 0") == 2


def test_a_stage_that_can_never_keep_its_bytes_fails_with_a_reason(lab: Lab, ledger: str) -> None:
    plan = PlanBuilder("chain").start(blob, NumberArgs(ledger=ledger)).then(process_read, NumberArgs(value=5)).finish()
    executor, status = lab.prepare(plan)
    hold = status.hold

    def hold_and_delete(kind: str, **fields: Any) -> None:
        hold(kind, **fields)
        if (kind, fields["node"]) == (Kinds.STAGE_BEGIN, "process-read"):
            for shard in Path(lab.store.places.blobs).iterdir():
                for path in shard.iterdir():
                    path.unlink()

    status.hold = hold_and_delete  # type: ignore[method-assign]
    result = executor.run()
    status.close()
    assert str(result.error) == "process-read: the bytes of blob keep vanishing"
    assert lines_of(ledger).count("blob 0") == 3


def test_a_record_names_what_made_it(lab: Lab) -> None:
    ran = lab.run(plan_of(number, NumberArgs(value=4)))
    assert ran["number"].key is not None
    found = lab.store.lookup(ran["number"].key)
    assert isinstance(found, RecordHit)
    body = found.record.body
    assert (body["stage"], body["kind"]) == ("test/number", "test-number@1")
    assert body["action"]["args"] == {"value": 4}
    assert body["seconds"] >= 0


def test_a_hit_is_not_a_write(tmp_path: Path) -> None:
    clock = FakeClock()
    with Lab(tmp_path / "lab", clock=clock) as lab:
        plan = plan_of(number, NumberArgs(value=4))
        key = lab.run(plan)["number"].key
        os.utime(lab.record_path(key), (clock.wall_s(), clock.wall_s()))
        before = os.stat(lab.record_path(key)).st_mtime
        lab.run(plan)
        assert os.stat(lab.record_path(key)).st_mtime == before
        clock.advance(2 * 86400)
        lab.run(plan)
        assert os.stat(lab.record_path(key)).st_mtime > before
