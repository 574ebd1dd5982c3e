from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.command import COOKBOOK
from stoker.cookbooks.command.cookbook import CommandArgs, command
from stoker.core.errors import InvalidArgs, StageInputError
from stoker.engine.arg_types import InputPath
from stoker.engine.plan import PlanNode
from stoker.engine.program import Program
from stoker.engine.stage import StageContext, perform

DATA = InputPath(__file__)


def compiled(**given: Any) -> PlanNode:
    given.setdefault("argv", ("true",))
    plan = command.compile(CommandArgs(**given))
    (node,) = plan.nodes
    assert node.id == plan.final == "run"
    return node


def rendered(node: PlanNode, out: str = "/out", scratch: str = "") -> Program:
    job = StageContext(node="run", out=out, emit=lambda _: None, is_cancelled=lambda: False, scratch=scratch)
    program = perform(node.stage, job, {}, node.stage.args.make(node.args))
    assert isinstance(program, Program)
    return program


def identity(node: PlanNode) -> dict[str, Any]:
    return node.stage.args.identity(node.args, lambda path: f"digest of {path}")


def test_a_program_by_itself_is_never_cached_and_with_declared_inputs_it_is() -> None:
    assert not compiled().stage.cached
    assert compiled(inputs=(DATA,)).stage.cached
    assert {stage.name for stage in COOKBOOK.stages} == {"command/run", "command/run_known"}
    assert all(stage.is_program and not stage.deterministic for stage in COOKBOOK.stages)


def test_where_it_runs_is_part_of_a_program_that_nobody_knows_and_not_of_a_known_one() -> None:
    assert identity(compiled(folder="/a"))["folder"] == "/a"
    known = identity(compiled(folder="/a", inputs=(DATA,), code={"t.py": DATA}))
    assert "folder" not in known
    assert list(known["inputs"]) == [{"content": f"digest of {DATA}"}]
    assert known["code"] == {"t.py": {"content": f"digest of {DATA}"}}


ON_GPUS: tuple[dict[str, Any], ...] = ({"gpus": 2}, {"vram": "6G"}, {"vram": "6G", "shares": True})


@pytest.mark.parametrize(
    "change",
    [{"python": "/p"}, {"memory": "8G"}, {"silence": "1m"}, {"timeout": "1h"}, {"attempts": 3}, {"cpus": 1}, *ON_GPUS],
)
def test_how_it_runs_does_not_change_what_it_is(change: dict[str, Any]) -> None:
    for inputs in ((), (DATA,)):
        assert identity(compiled(inputs=inputs)) == identity(compiled(inputs=inputs, **change))


@pytest.mark.parametrize(
    "change", [{"argv": ("false",)}, {"params": {"lr": 1}}, {"env": {"A": "1"}}, {"outputs": ("runs",)}]
)
def test_what_it_is_told_is_part_of_it(change: dict[str, Any]) -> None:
    assert identity(compiled()) != identity(compiled(**change))


def test_it_takes_the_machine_unless_told() -> None:
    node = compiled(machine_cpus=8, machine_gpus=2)
    assert (node.needs.cpu, node.needs.gpu, node.needs.memory_bytes) == (8, 1, 0)
    node = compiled(machine_cpus=8, machine_gpus=0)
    assert node.needs.gpu == 0
    node = compiled(machine_cpus=8, machine_gpus=2, cpus=2, gpus=0, memory="4GiB")
    assert (node.needs.cpu, node.needs.gpu, node.needs.memory_bytes) == (2, 0, 4 * 2**30)


def test_memory_of_a_device_is_asked_for_with_the_device() -> None:
    needs = compiled(machine_gpus=2, vram="6GiB").needs
    assert (needs.gpu, needs.vram_bytes, needs.shares) == (1, 6 * 2**30, False)
    needs = compiled(machine_gpus=0, vram="6GiB", shares=True).needs
    assert (needs.gpu, needs.vram_bytes, needs.shares) == (1, 6 * 2**30, True)
    needs = compiled(gpus=0, shares=True).needs
    assert (needs.gpu, needs.shares) == (0, False)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"gpus": 0, "vram": "6G"}, ["vram"]),
        ({"shares": True}, ["shares"]),
        ({"shares": True, "vram": "some"}, ["vram"]),
    ],
    ids=["no-device", "no-part", "no-size"],
)
def test_a_part_of_nothing_is_refused(settings: dict[str, Any], where: list[str]) -> None:
    with pytest.raises(InvalidArgs) as refused:
        compiled(machine_gpus=1, **settings)
    assert [fault.where for fault in refused.value.faults] == where


def test_limits_and_attempts_are_the_nodes() -> None:
    node = compiled(timeout="90s", attempts=3, silence="30m")
    assert node.limit_s == 90.0
    assert node.retry is not None
    assert node.retry.attempts == 3
    assert rendered(node).silence_s == 1800.0
    assert compiled().retry is None


def test_all_settings_that_make_no_sense_are_named_together() -> None:
    with pytest.raises(InvalidArgs) as refused:
        compiled(memory="lots", silence="0s", timeout="soon", outputs=("../x", "ok", "/abs"))
    assert [fault.where for fault in refused.value.faults] == ["memory", "silence", "timeout", "outputs", "outputs"]
    assert refused.value.exit_code == 28


def test_its_words_get_their_last_places(tmp_path: Path) -> None:
    node = compiled(argv=("tool", "{out}/a", "{scratch}", "{{x}}"), folder="/f", env={"A": "1"}, params={"lr": 1})
    program = rendered(node, scratch=str(tmp_path / "scratch"))
    assert program.argv == ("tool", "/out/a", str(tmp_path / "scratch"), "{x}")
    assert (program.folder, program.env, program.params) == ("/f", {"A": "1"}, {"lr": 1})


def test_its_scratch_folder_is_not_made_for_nothing(tmp_path: Path) -> None:
    rendered(compiled(), scratch=str(tmp_path / "scratch"))
    assert not (tmp_path / "scratch").exists()


def test_a_place_that_nothing_fills_is_refused() -> None:
    with pytest.raises(StageInputError, match=r"no value for \{lr\}"):
        rendered(compiled(argv=("tool", "{lr}")))


def test_ranks_are_words_before_the_program_and_a_device_for_each() -> None:
    node = compiled(argv=("python", "t.py"), ranks=4, machine_gpus=8)
    assert rendered(node).argv == ("stoker", "gang", "run", "--ranks", "4", "--", "python", "t.py")
    assert node.needs.gpu == 4
    assert compiled(ranks=4, machine_gpus=2).needs.gpu == 2
    assert compiled(ranks=4, gpus=1, machine_gpus=8).needs.gpu == 1
    assert compiled(ranks=4, vram="6G").needs.gpu == 4
    assert compiled(ranks=4).needs.gpu == 0
    assert identity(compiled(ranks=4)) != identity(compiled(ranks=2)) != identity(compiled())
