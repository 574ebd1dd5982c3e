"""Members, a context of one, and the share keys by which attempts find their shared process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.authoring import Digests, InputPath, PlanBuilder, ProcessSharing, SoloContext, StageContext, arg, stage
from stoker.core.errors import InternalError
from stoker.engine.action import share_key_of, shared_process_key
from stoker.engine.device_gate import held_base
from stoker.engine.plan import PlanNode
from tests.unit.engine.lab import Lab
from tests.unit.engine.stages import Number


def alone(tmp_path: Path) -> SoloContext:
    job = StageContext(
        node="n", out=str(tmp_path), emit=lambda _report: None, is_cancelled=lambda: False, devices=("GPU-1",)
    )
    return SoloContext(job, {}, None)


def test_a_shared_process_of_one_is_over_when_that_one_has_ended(tmp_path: Path) -> None:
    shared = alone(tmp_path)
    (member,) = shared.new_members(0.0)
    assert (shared.new_members(9.0), shared.is_over, shared.devices) == ([], False, ("GPU-1",))
    member.finished(member.job.save(Number, 3))
    assert shared.is_over
    assert shared.result().load() == 3


def test_a_shared_process_of_one_raises_what_its_member_failed_with(tmp_path: Path) -> None:
    shared = alone(tmp_path)
    (member,) = shared.new_members(0.0)
    member.failed(ZeroDivisionError("oh"))
    with pytest.raises(ZeroDivisionError, match="oh"):
        shared.result()


def test_a_member_ends_once(tmp_path: Path) -> None:
    shared = alone(tmp_path)
    (member,) = shared.new_members(0.0)
    assert member.is_active
    member.failed(ValueError("oh"))
    assert not member.is_active
    with pytest.raises(InternalError, match="twice"):
        member.failed(ValueError("oh"))


def test_a_member_without_an_outcome_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="did not report an outcome"):
        alone(tmp_path).result()


@dataclass(frozen=True)
class BaseArgs:
    base_files: tuple[InputPath, ...] = arg(help="What members have in common.")
    rank: int = arg(8, help="What they do not.")
    place: str = arg("", help="Where it is.", runtime=True)


def key_of(args: BaseArgs, digests: Digests) -> str:
    return " ".join([type(args).__name__, *digests["base_files"], *digests["numbers"]])


@stage("test/based", together=ProcessSharing(run="unused:function", key=key_of))
def based(job: StageContext, numbers: list[Number], args: BaseArgs) -> Number:
    return job.save(Number, 1)


def test_a_share_key_is_made_of_what_a_stage_reads_and_the_process_key_of_its_code_too(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for path, text in ((one, "base"), (same, "base"), (other, "another")):
        path.write_text(text)
    found = {}
    with Lab(tmp_path / "lab") as lab:
        for path in (one, same, other):
            node = node_reading(path)
            action = lab.cache.action(node, {"numbers": ()})
            share_key = share_key_of(based, node.args, action)
            found[path.name] = (share_key, shared_process_key(based, share_key, action), held_base(share_key))
    assert found["one"] == found["same"]
    assert all(one != other for one, other in zip(found["one"], found["other"], strict=True))
    assert found["one"][0].startswith("BaseArgs ")
    assert held_base("share_key", user=1) != held_base("share_key", user=2)


def node_reading(path: Path) -> PlanNode:
    values, faults = based.args.check({"base_files": [str(path)]}, owner="based")
    assert not faults
    return PlanNode(id="based", stage=based, args=values)


def test_a_cookbook_that_cant_give_its_share_key_fails_its_own_stage(tmp_path: Path) -> None:
    def keyless(_args: object, _digests: Digests) -> str:
        message = "no base"
        raise KeyError(message)

    @stage("test/keyless", together=ProcessSharing(run="unused:function", key=keyless))
    def shy(job: StageContext) -> Number:
        return job.save(Number, 1)

    with Lab(tmp_path / "lab") as lab:
        ran = lab.run(PlanBuilder("shy").start(shy).finish())
    assert ran["keyless"].message == "share key: KeyError: 'no base'"
