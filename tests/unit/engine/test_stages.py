from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from stoker.authoring import JsonKind, Needs, Plan, PlanBuilder, StageContext, arg, recipe, stage
from stoker.core.retry import RetryPolicy
from stoker.engine.stage import perform
from tests.unit.engine.stages import Number, Words, add, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    x: int = arg(1)


class Nameless(JsonKind):
    pass


def test_annotations_are_the_declaration() -> None:
    @stage("cook/mix", version=3, uses=("numpy",), needs=Needs(cpu=2), timeout_s=5.0)
    def mix(job: StageContext, table: Number, words: list[Words], args: Args) -> list[Number]:
        """Mix them.

        Well.
        """
        return []

    assert (mix.name, mix.version, mix.uses) == ("cook/mix", 3, ("numpy",))
    assert [(port.name, port.kind, port.takes_many) for port in mix.ports] == [
        ("table", Number, False),
        ("words", Words, True),
    ]
    assert (mix.output, mix.gives_list, mix.takes_job) == (Number, True, True)
    assert list(mix.args.specs) == ["x"]
    assert mix.summary == "Mix them."
    assert mix.port("table") == mix.ports[0]
    assert mix.port("nothing") is None
    assert mix.entry.startswith("tests.unit.engine.test_stages:")


def test_a_stage_may_do_without_context_and_arguments() -> None:
    @stage("cook/plain")
    def plain(table: Number) -> Number:
        return table

    assert not plain.takes_job
    assert plain.args.type is None
    handle: Any = object()
    assert perform(plain, job=None, inputs={"table": handle}, args=None) is handle


def test_the_output_must_be_a_kind() -> None:
    with pytest.raises(TypeError, match=r"stage s: the return annotation is .*int.*, not a kind"):

        @stage("s")
        def bad(job: StageContext) -> int:
            return 1


def test_the_output_must_be_there() -> None:
    with pytest.raises(TypeError, match="the return annotation is None"):

        @stage("s")
        def bad(job: StageContext):
            return 1


def test_an_input_must_be_a_kind() -> None:
    with pytest.raises(TypeError, match="parameter table is <class 'dict'>"):

        @stage("s")
        def bad(job: StageContext, table: dict) -> Number:
            return job.save(Number, 1)


def test_a_kind_must_have_a_name() -> None:
    with pytest.raises(TypeError, match="the kind Nameless, which has no name"):

        @stage("s")
        def bad(job: StageContext) -> Nameless:
            return job.save(Nameless, 1)


def test_arguments_must_be_annotated() -> None:
    with pytest.raises(TypeError, match="args is not annotated"):

        @stage("s")
        def bad(job: StageContext, args) -> Number:
            return job.save(Number, 1)


def test_arguments_must_be_a_dataclass() -> None:
    with pytest.raises(TypeError, match="not a dataclass"):

        @stage("s")
        def bad(job: StageContext, args: int) -> Number:
            return job.save(Number, 1)


def test_parameters_are_given_by_name() -> None:
    with pytest.raises(TypeError, match=r"so \*tables: Number can't be one|\*tables"):

        @stage("s")
        def bad(job: StageContext, *tables: Number) -> Number:
            return job.save(Number, 1)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("", {}, "its name is"),
        ("a b", {}, "its name is"),
        ("../up", {"version": 0}, "versions count from 1"),
        ("/a", {}, "its name is"),
        ("a//b", {}, "its name is"),
        ("s", {"version": 0}, "versions count from 1"),
        ("s", {"needs": Needs(cpu=-1)}, "must not be negative"),
        ("s", {"needs": Needs(memory_gib=-1.0)}, "must not be negative"),
        ("s", {"needs": Needs(ranks=0)}, "one rank at least"),
        ("s", {"needs": Needs(ranks=4, gpu=1)}, "4 ranks have a device each, or none"),
        ("s", {"retry": RetryPolicy(attempts=0)}, "at least one"),
        ("s", {"retry": RetryPolicy(backoff_s=-1.0)}, "backoff is negative"),
        ("s", {"timeout_s": 0.0}, "is not positive"),
        ("s", {"timeout_s": float("nan")}, "is not positive"),
    ],
)
def test_what_could_only_go_wrong_later_is_refused_now(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        stage(name, **options)


def test_a_recipe_takes_nothing_or_args() -> None:
    with pytest.raises(TypeError, match="recipe r: it takes nothing, or `args`"):

        @recipe("r", output=Number)
        def bad(rows: int) -> Plan:
            raise NotImplementedError

    with pytest.raises(TypeError, match="recipe r: it takes nothing, or `args`"):

        @recipe("r", output=Number)
        def unannotated(args) -> Plan:
            raise NotImplementedError


def test_a_recipe_is_summed_up_by_its_docstring() -> None:
    @recipe("cook/sum", output=Number, version=2)
    def make(args: Args) -> Plan:
        """Add up.

        All of it.
        """
        return PlanBuilder("sum").start(number).then(add).finish()

    assert (make.summary, make.leaf, make.version) == ("Add up.", "sum", 2)
    assert [node.id for node in make.compile(Args()).nodes] == ["number", "add"]
