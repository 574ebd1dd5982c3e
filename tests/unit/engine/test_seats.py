"""Seats, a company of one, and the words by which attempts find their like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.authoring import Alone, Digests, InputPath, PlanBuilder, StageContext, Together, arg, stage
from stoker.core.errors import InternalError
from stoker.engine.action import company_key, company_word
from stoker.engine.device_gate import held_base
from stoker.engine.plan import PlanNode
from tests.unit.engine.lab import Lab
from tests.unit.engine.stages import Number


def alone(tmp_path: Path) -> Alone:
    job = StageContext(
        node="n", out=str(tmp_path), emit=lambda _report: None, is_cancelled=lambda: False, devices=("GPU-1",)
    )
    return Alone(job, {}, None)


def test_a_company_of_one_is_over_when_that_one_has_ended(tmp_path: Path) -> None:
    company = alone(tmp_path)
    (seat,) = company.arrivals(0.0)
    assert (company.arrivals(9.0), company.is_over, company.devices) == ([], False, ("GPU-1",))
    seat.finished(seat.job.save(Number, 3))
    assert company.is_over
    assert company.result().load() == 3


def test_a_company_of_one_raises_what_its_member_failed_with(tmp_path: Path) -> None:
    company = alone(tmp_path)
    (seat,) = company.arrivals(0.0)
    seat.failed(ZeroDivisionError("oh"))
    with pytest.raises(ZeroDivisionError, match="oh"):
        company.result()


def test_a_member_ends_once(tmp_path: Path) -> None:
    company = alone(tmp_path)
    (seat,) = company.arrivals(0.0)
    assert seat.is_taken
    seat.failed(ValueError("oh"))
    assert not seat.is_taken
    with pytest.raises(InternalError, match="twice"):
        seat.failed(ValueError("oh"))


def test_who_never_said_how_it_ended_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="without saying how"):
        alone(tmp_path).result()


@dataclass(frozen=True)
class BaseArgs:
    base_files: tuple[InputPath, ...] = arg(help="What members have in common.")
    rank: int = arg(8, help="What they do not.")
    place: str = arg("", help="Where it is.", runtime=True)


def words_of(args: BaseArgs, digests: Digests) -> str:
    return " ".join([type(args).__name__, *digests["base_files"], *digests["numbers"]])


@stage("test/based", together=Together(run="nobody:calls", key=words_of))
def based(job: StageContext, numbers: list[Number], args: BaseArgs) -> Number:
    return job.save(Number, 1)


def test_words_are_made_of_what_a_stage_reads_and_the_key_of_its_code_too(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for path, text in ((one, "base"), (same, "base"), (other, "another")):
        path.write_text(text)
    found = {}
    with Lab(tmp_path / "lab") as lab:
        for path in (one, same, other):
            node = node_reading(path)
            action = lab.cache.action(node, {"numbers": ()})
            word = company_word(based, node.args, action)
            found[path.name] = (word, company_key(based, word, action), held_base(word))
    assert found["one"] == found["same"]
    assert all(one != other for one, other in zip(found["one"], found["other"], strict=True))
    assert found["one"][0].startswith("BaseArgs ")
    assert held_base("word", user=1) != held_base("word", user=2)


def node_reading(path: Path) -> PlanNode:
    values, faults = based.args.check({"base_files": [str(path)]}, owner="based")
    assert not faults
    return PlanNode(id="based", stage=based, args=values)


def test_a_cookbook_that_cant_give_its_word_fails_its_own_stage(tmp_path: Path) -> None:
    def wordless(_args: object, _digests: Digests) -> str:
        message = "no base"
        raise KeyError(message)

    @stage("test/wordless", together=Together(run="nobody:calls", key=wordless))
    def shy(job: StageContext) -> Number:
        return job.save(Number, 1)

    with Lab(tmp_path / "lab") as lab:
        ran = lab.run(PlanBuilder("shy").start(shy).finish())
    assert ran["wordless"].message == "with whom it shares a process can't be told: KeyError: 'no base'"
