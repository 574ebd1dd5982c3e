"""A cookbook that is edited while it runs: what lies under a key was made by the code in that key, in every way to run.

Each project has a stage's module, a helper that it imports at once, and one that it imports only while it works. The
stages say which text of each of them worked.
"""

from __future__ import annotations

import importlib
import itertools
import os
import py_compile
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker.authoring import Plan, PlanBuilder
from stoker.core.clock import SystemClock
from stoker.engine.runners.process_runner import ProcessRunner
from stoker.host.import_watch import watch_imports
from tests.unit.engine.lab import Lab, Ran, process_runner

CLOCK = SystemClock()
FILES = ("stages.py", "helper.py", "late.py")
_names = (f"edited_{number}" for number in itertools.count())

STAGES = """
import os
import time
from dataclasses import dataclass

from stoker.authoring import SoloContext, JsonKind, Needs, Program, StageContext, ProcessSharing, TreeKind, arg, stage
from {package} import helper

TEXT = 1


class Told(JsonKind):
    name = "edited/told"


class Made(TreeKind):
    name = "edited/made"


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    number: int = arg(0)
    gate: str = arg("", runtime=True)


def texts(args):
    if args.gate:
        with open(f"{{args.gate}}.began-{{args.number}}", "w"):
            pass
        while not os.path.exists(args.gate):
            time.sleep(0.005)
    from {package} import late

    return [TEXT, helper.TEXT, late.TEXT]


@stage("edited/plain")
def plain(job: StageContext, args: Args) -> Told:
    return job.save(Told, texts(args))


@stage("edited/inline", inline=True)
def inline(job: StageContext, args: Args) -> Told:
    return job.save(Told, texts(args))


def mark():
    with open(__file__.replace("stages.py", "mark")) as file:
        return file.read()


@stage("edited/marked", fingerprint=mark)
def marked(job: StageContext, args: Args) -> Told:
    texts(args)
    return job.save(Told, [int(mark())] * 3)


@stage("edited/lines")
def lines(job: StageContext, args: Args) -> Told:
    texts(args)
    import inspect

    (line,) = [one for one in inspect.getsourcelines(inspect.getmodule(texts))[0] if one.startswith("TEXT = ")]
    return job.save(Told, [int(line.split()[-1])] * 3)


@stage("edited/many")
def many(job: StageContext) -> list[Told]:
    return [job.save_item(Told, number) for number in range(3)]


@stage("edited/each")
def each(job: StageContext, item: Told, args: Args) -> Told:
    return job.save(Told, texts(Args(number=item.load(), gate=args.gate)))


@stage("edited/gang", needs=Needs(ranks=2))
def gang(job: StageContext, args: Args) -> Told:
    import torch
    from torch import distributed

    numbers = torch.tensor(texts(args))
    distributed.all_reduce(numbers)
    if distributed.get_rank() == 0:
        job.save(Told, (numbers / 2).int().tolist())
    distributed.barrier()
    return job.made(Told)


def run_together(shared):
    members = []
    while not shared.is_over:
        members += shared.new_members(0.01 if members else 0.5)
        for member in list(members):
            members.remove(member)
            member.finished(member.job.save(Told, texts(member.args)))


@stage("edited/shared", together=ProcessSharing(run="{package}.stages:run_together", key=lambda args, _: "same"))
def shared(job: StageContext, args: Args) -> Told:
    alone = SoloContext(job, {{}}, args)
    run_together(alone)
    return alone.result()


def put_late(queue):
    from {package} import late

    queue.put(late.TEXT)


def late_text():
    from {package} import late

    return late.TEXT


def by_spawn():
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=put_late, args=(queue,))
    process.start()
    process.join()
    return queue.get()


def by_forkserver():
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        return pool.submit(late_text).result(60)


def by_program():
    import subprocess
    import sys

    root = os.path.dirname(os.path.dirname(__file__))
    code = f"import sys; sys.path.insert(0, {{root!r}}); import {package}.late as late; print(late.TEXT)"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def by_shell():
    return os.system("exit $(sed 's/TEXT = //' " + __file__.replace("stages.py", "late.py") + ")") >> 8


def by_path():
    import runpy

    return runpy.run_path(__file__.replace("stages.py", "late.py"))["TEXT"]


def by_other_name():
    import importlib.util

    spec = importlib.util.spec_from_file_location("other", __file__.replace("stages.py", "late.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TEXT


def by_fork():
    import multiprocessing

    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(by_program()))
    process.start()
    process.join()
    return queue.get()


def by_plain_fork():
    import multiprocessing

    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=put_late, args=(queue,))
    process.start()
    process.join()
    return queue.get()


def by_reload():
    import importlib
    from {package} import late

    return importlib.reload(late).TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundArgs(Args):
    way: str = arg("")


def around_texts(args):
    texts(args)
    return [globals()["by_" + args.way]()] * 3


@stage("edited/around")
def around(job: StageContext, args: AroundArgs) -> Told:
    return job.save(Told, around_texts(args))


@stage("edited/around-resumed")
def around_resumed(job: StageContext, args: AroundArgs) -> Told:
    number, checkpoint = around_texts(args)[0], job.scratch / "number"
    if not checkpoint.exists():
        checkpoint.write_text(str(number))
    return job.save(Told, [int(checkpoint.read_text())] * 3)


@stage("edited/around-inline", inline=True)
def around_inline(job: StageContext, args: AroundArgs) -> Told:
    return job.save(Told, around_texts(args))


def run_around_together(shared):
    while not shared.is_over:
        for member in shared.new_members(0.5):
            member.finished(member.job.save(Told, around_texts(member.args)))


sharing = ProcessSharing(run="{package}.stages:run_around_together", key=lambda args, _: "one")


@stage("edited/around-shared", together=sharing)
def around_shared(job: StageContext, args: AroundArgs) -> Told:
    alone = SoloContext(job, {{}}, args)
    run_around_together(alone)
    return alone.result()


@stage("edited/around-gang", needs=Needs(ranks=2))
def around_gang(job: StageContext, args: AroundArgs) -> Told:
    import torch
    from torch import distributed

    # Only the second rank looks; the first one writes.
    number = torch.tensor(around_texts(args)[0] if distributed.get_rank() == 1 else 0)
    distributed.all_reduce(number)
    if distributed.get_rank() == 0:
        job.save(Told, [int(number)] * 3)
    distributed.barrier()
    return job.made(Told)


@stage("edited/program", program=Made)
def program(job: StageContext, args: Args) -> Program:
    return Program(argv=("/bin/sh", "-c", f"echo {{texts(args)}} > $STOKER_OUT/texts"), folder="/")
"""


class Project:
    """A package below a folder, imported as a user's would be."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.package = next(_names)
        self.folder = root / self.package
        self.folder.mkdir()
        self.folder.joinpath("__init__.py").touch()
        for name in FILES:
            self.folder.joinpath(name).write_text("TEXT = 1\n")
        self.folder.joinpath("stages.py").write_text(STAGES.format(package=self.package))
        self.folder.joinpath("mark").write_text("1")
        self.gate = folder / "gate"

    def load(self) -> ModuleType:
        importlib.invalidate_caches()
        return importlib.import_module(f"{self.package}.stages")

    def forget(self) -> None:
        """Be as a new process: nothing of the project is imported."""
        for name in [name for name in sys.modules if name.split(".")[0] == self.package]:
            del sys.modules[name]

    def edit(self, before: int, after: int, *names: str) -> None:
        for name in names or FILES:
            path = self.folder / name
            path.write_text(path.read_text().replace(f"TEXT = {before}", f"TEXT = {after}"))

    def plan(self, stage: str, *, gated: bool = False, count: int = 1) -> Plan:
        """A plan of so many trials of a stage, or of a fan-out."""
        stages, gate = self.load(), str(self.gate) if gated else ""
        builder = PlanBuilder(stage)
        if stage == "each":
            return builder.start(stages.many).each(stages.each, stages.Args(gate=gate), id="each").finish()
        of = getattr(stages, stage)
        tips = [builder.start(of, stages.Args(number=one, gate=gate), id=f"t{one}") for one in range(count)]
        return builder.finish(tips[0], keep=tuple(tips[1:]))

    def plan_around(self, stage: str, way: str, *, gated: bool = False) -> Plan:
        """A plan of one trial that asks for the text of `late` in a way around this process's imports."""
        stages, gate = self.load(), str(self.gate) if gated else ""
        builder = PlanBuilder(stage)
        return builder.finish(builder.start(getattr(stages, stage), stages.AroundArgs(way=way, gate=gate), id="t0"))

    def has_begun(self) -> bool:
        """Return whether a trial has: of those that share a process, any may be the first."""
        return any(self.gate.parent.glob("gate.began-*"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the projects of all tests lie, each under a name of its own."""
    folder = tmp_path_factory.mktemp("projects")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def processes(root: Path) -> Iterator[ProcessRunner]:
    """One zygote for all tests: it imports nothing of a project, only its forks do."""
    with closing(process_runner(root)) as runner:
        yield runner


@pytest.fixture(scope="module")
def gang_processes(root: Path) -> Iterator[ProcessRunner]:
    with closing(process_runner(root, ("torch", "stoker.app.gang_child"))) as runner:
        yield runner


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Iterator[Project]:
    watch_imports()
    made = Project(root, tmp_path)
    try:
        yield made
    finally:
        made.forget()


@pytest.fixture
def lab(tmp_path: Path, processes: ProcessRunner) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", processes=processes) as made:
        yield made


def until(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline_s = CLOCK.monotonic_s() + 30.0
    while not is_so():
        assert CLOCK.monotonic_s() < deadline_s, otherwise
        CLOCK.sleep(0.005)


def values(lab: Lab, ran: Ran) -> list[Any]:
    """What each trial, or each instance of a fan-out, said."""
    assert ran.result.error is None, ran.result.error
    names = [name for name in ran.result.nodes if name.startswith("t") or "[" in name]
    return [lab.value(ran, name) for name in names]


def is_all(lab: Lab, ran: Ran, text: int) -> bool:
    return values(lab, ran) == [[text] * 3] * len(values(lab, ran)) != []


@pytest.mark.parametrize(
    ("stage", "count"), [("plain", 1), ("plain", 3), ("inline", 1), ("each", 3), ("shared", 1), ("shared", 2)]
)
def test_a_run_keeps_to_its_code_and_the_next_one_takes_the_new(
    lab: Lab, project: Project, stage: str, count: int
) -> None:
    # With one place, later trials begin after the edit.
    flight = lab.start(project.plan(stage, gated=True, count=count), max_in_flight=1)
    until(project.has_begun, "the stage does not begin")
    project.edit(1, 2)
    project.gate.touch()
    first = flight.land()
    assert is_all(lab, first, 1)
    assert any("was edited while this ran" in warning for warning in first.result.warnings)

    second = lab.run(project.plan(stage, count=count))
    assert is_all(lab, second, 2)
    assert second.result.hits == 0, "no result of the old code is one of the new"

    project.edit(2, 1)
    third = lab.run(project.plan(stage, count=count))
    assert is_all(lab, third, 1)
    assert third.result.ran == 0, "the code is what it was, and so is its result"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("stage", ["plain", "inline", "shared"])
def test_an_edit_of_one_file_is_enough(lab: Lab, project: Project, stage: str, name: str) -> None:
    flight = lab.start(project.plan(stage, gated=True))
    until(project.has_begun, "the stage does not begin")
    project.edit(1, 2, name)
    project.gate.touch()
    assert is_all(lab, flight.land(), 1)
    expected = [2 if one == name else 1 for one in FILES]
    assert values(lab, lab.run(project.plan(stage))) == [expected]


def test_ranks_of_a_gang_all_have_the_code_that_was_digested(
    tmp_path: Path, project: Project, gang_processes: ProcessRunner
) -> None:
    with Lab(tmp_path / "lab", processes=gang_processes) as lab:
        flight = lab.start(project.plan("gang", gated=True))
        until(project.has_begun, "the stage does not begin")
        project.edit(1, 2)
        project.gate.touch()
        assert is_all(lab, flight.land(), 1)
        assert is_all(lab, lab.run(project.plan("gang")), 2)


def test_a_process_that_was_warm_before_an_edit_runs_the_new_code(tmp_path: Path, project: Project) -> None:
    with Lab(tmp_path / "lab", preload=(f"{project.package}.stages", f"{project.package}.late")) as lab:
        assert is_all(lab, lab.run(project.plan("plain")), 1)
        warm = lab.processes._zygote
        project.edit(1, 2)
        assert is_all(lab, lab.run(project.plan("plain")), 2)
        assert lab.processes._zygote is warm


def test_code_that_is_edited_before_a_stage_could_start_is_run_as_it_is_then(lab: Lab, project: Project) -> None:
    stages = project.load()
    builder = PlanBuilder("two")
    other = Project(project.root, project.gate.parent)
    first = builder.start(stages.plain, stages.Args(gate=str(project.gate)), id="first")
    others = other.load()
    second = builder.start(others.plain, others.Args(), id="t1")
    flight = lab.start(builder.finish(first, keep=(second,)), max_in_flight=1)
    until(project.has_begun, "the first does not begin")
    other.edit(1, 2)
    project.gate.touch()
    ran = flight.land()
    assert is_all(lab, ran, 2)
    assert any("was edited before it could start" in event["text"] for event in ran.of_kind("stage_log", "t1"))
    assert is_all(lab, lab.run(other.plan("plain")), 2)
    other.forget()


def test_an_inline_stage_whose_module_was_imported_before_an_edit_runs_the_new_code(lab: Lab, project: Project) -> None:
    project.load()
    project.edit(1, 2)
    ran = lab.run(project.plan("inline"))
    assert is_all(lab, ran, 2)
    project.forget()
    assert is_all(lab, lab.run(project.plan("inline")), 2)


def test_a_program_is_not_rendered_by_code_that_was_edited_since_it_was_imported(lab: Lab, project: Project) -> None:
    plan = project.plan("program")
    project.edit(1, 2)
    ran = lab.run(plan)
    assert ran["t0"].message == "the code of edited/program was edited after this process had imported it"
    project.forget()
    ran = lab.run(project.plan("program"))
    (product,) = ran["t0"].products
    assert lab.store.read_bytes(product.record, "texts") == b"[2, 2, 2]\n"


@pytest.mark.parametrize("stage", ["plain", "inline"])
def test_bytecode_from_before_an_edit_within_the_same_second_is_not_believed(
    lab: Lab, project: Project, stage: str
) -> None:
    second_s = int(CLOCK.wall_s())
    for name in FILES:
        path = project.folder / name
        os.utime(path, (second_s, second_s))
        py_compile.compile(str(path), doraise=True)
        project.edit(1, 2, name)
        os.utime(path, (second_s, second_s))
    assert is_all(lab, lab.run(project.plan(stage)), 2)


def test_a_helper_that_is_renamed_while_a_stage_runs_is_still_imported_by_it(lab: Lab, project: Project) -> None:
    flight = lab.start(project.plan("plain", gated=True))
    until(project.has_begun, "the stage does not begin")
    os.rename(project.folder / "late.py", project.folder / "later.py")
    project.gate.touch()
    assert is_all(lab, flight.land(), 1)


def test_a_package_that_appears_beside_a_helper_is_not_imported_by_a_stage_that_runs(
    lab: Lab, project: Project
) -> None:
    flight = lab.start(project.plan("plain", gated=True))
    until(project.has_begun, "the stage does not begin")
    (project.folder / "late").mkdir()
    (project.folder / "late" / "__init__.py").write_text("TEXT = 2\n")
    project.gate.touch()
    assert is_all(lab, flight.land(), 1)
    assert values(lab, lab.run(project.plan("plain"))) == [[1, 1, 2]]


def test_a_stage_that_compiles_its_own_source_sees_the_text_that_it_was_imported_from(
    lab: Lab, project: Project
) -> None:
    flight = lab.start(project.plan("lines", gated=True))
    until(project.has_begun, "the stage does not begin")
    project.edit(1, 2)
    project.gate.touch()
    assert is_all(lab, flight.land(), 1)
    assert is_all(lab, lab.run(project.plan("lines")), 2)


def test_what_a_fingerprint_is_of_may_not_change_while_the_stage_runs(lab: Lab, project: Project) -> None:
    flight = lab.start(project.plan("marked", gated=True))
    until(project.has_begun, "the stage does not begin")
    project.folder.joinpath("mark").write_text("2")
    project.gate.touch()
    assert flight.land()["t0"].message == "input changed while the stage ran: the result of fingerprint="
    assert is_all(lab, lab.run(project.plan("marked")), 2)
    project.folder.joinpath("mark").write_text("1")
    assert is_all(lab, lab.run(project.plan("marked")), 1)


WAYS = ["spawn", "forkserver", "program", "shell", "path", "other_name", "fork"]


@pytest.mark.parametrize(
    ("stage", "way"),
    [("around", way) for way in WAYS]
    + [(stage, way) for stage in ("around_inline", "around_shared") for way in ("program", "path")]
    + [("around_resumed", "path")],
)
def test_what_was_made_around_the_pinned_code_is_not_kept_under_its_key(
    lab: Lab, project: Project, stage: str, way: str
) -> None:
    flight = lab.start(project.plan_around(stage, way, gated=True))
    until(project.has_begun, "the stage does not begin")
    project.edit(1, 2, "late.py")
    project.gate.touch()
    first = flight.land()
    assert is_all(lab, first, 2)
    assert any("was edited before it could end" in event["text"] for event in first.of_kind("stage_log", "t0"))
    assert first.result.warnings == ()

    again = lab.run(project.plan_around(stage, way))
    assert is_all(lab, again, 2)
    assert again.result.hits == 1, "the second attempt lies under the key of the new code"

    project.edit(2, 1, "late.py")
    project.forget()
    reverted = lab.run(project.plan_around(stage, way))
    assert reverted.result.hits == 0, "nothing lies under the key of the old code"
    assert is_all(lab, reverted, 1)


@pytest.mark.parametrize("way", ["plain_fork", "reload"])
def test_forks_and_reloads_have_the_pinned_code(lab: Lab, project: Project, way: str) -> None:
    flight = lab.start(project.plan_around("around", way, gated=True))
    until(project.has_begun, "the stage does not begin")
    project.edit(1, 2, "late.py")
    project.gate.touch()
    first = flight.land()
    assert is_all(lab, first, 1)
    assert any("was edited while this ran" in warning for warning in first.result.warnings)


def test_a_program_of_a_stage_whose_code_was_not_edited_does_not_matter(lab: Lab, project: Project) -> None:
    first = lab.run(project.plan_around("around", "program"))
    assert is_all(lab, first, 1)
    assert [event["text"] for event in first.of_kind("stage_log", "t0")] == []


def test_an_edit_that_was_taken_back_while_the_stage_ran_is_noticed(lab: Lab, project: Project) -> None:
    flight = lab.start(project.plan_around("around", "program", gated=True))
    until(project.has_begun, "the stage does not begin")
    project.edit(1, 2, "late.py")
    project.edit(2, 1, "late.py")
    project.gate.touch()
    first = flight.land()
    assert is_all(lab, first, 1)
    assert any("was edited before it could end" in event["text"] for event in first.of_kind("stage_log", "t0"))


def test_a_rank_that_goes_around_the_pinned_code_is_noticed(
    tmp_path: Path, project: Project, gang_processes: ProcessRunner
) -> None:
    with Lab(tmp_path / "lab", processes=gang_processes) as lab:
        flight = lab.start(project.plan_around("around_gang", "program", gated=True))
        until(project.has_begun, "the stage does not begin")
        project.edit(1, 2, "late.py")
        project.gate.touch()
        assert is_all(lab, flight.land(), 2)
        project.edit(2, 1, "late.py")
        project.forget()
        assert is_all(lab, lab.run(project.plan_around("around_gang", "program")), 1)
