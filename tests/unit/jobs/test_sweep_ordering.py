from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.core.errors import BadInput, Diagnostic, InvalidArgs, InvalidConfig, InvalidProgram, MissingRepoFiles
from stoker.core.jsontext import loads
from stoker.engine.args import ArgsSchema, arg
from stoker.host.identity import mine
from stoker.jobs.builder import ComposedJob
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.request import JobRequest, TrialDiagnostics, swept_lists
from stoker.jobs.trial_settings import CONFIG, read_config
from stoker.jobs.trials import read_trials, trials_of_job
from tests.fakes.overrides import parse_overrides
from tests.unit.engine.lab import faults_of
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.sweeping import Sweeps


@pytest.fixture
def sweeps(office: Office) -> Sweeps:
    return Sweeps(office)


def draft(
    sweeps: Sweeps, *overrides: str, program: tuple[str, ...] = (), target: str = "", **more: object
) -> ComposedJob:
    wanted = JobRequest(target=target, overrides=overrides, program=program, **more)  # type: ignore[arg-type]
    return sweeps.office.builder.compose(wanted)


def test_trials_come_in_the_order_of_nested_loops(sweeps: Sweeps) -> None:
    order = sweeps.order("base=2,1", "factor=range:1:4:1", target="test/branches")
    assert [trial.spec.label for trial in order.trials] == [
        f"base={base},factor={factor}" for base, factor in itertools.product((2, 1), (1, 2, 3))
    ]
    assert [trial.spec.number for trial in order.trials] == [1, 2, 3, 4, 5, 6]
    assert [trial.spec.point for trial in order.trials][:2] == [{"base": 2, "factor": 1}, {"base": 2, "factor": 2}]


def test_the_order_is_the_same_every_time_and_so_is_who_is_who(sweeps: Sweeps) -> None:
    words = ("base=2,1", "factor=3,1,2")
    one, two = (sweeps.order(*words, target="test/branches") for _ in range(2))
    assert [trial.spec.id for trial in one.trials] == [trial.spec.id for trial in two.trials]
    assert one.spec.id == two.spec.id
    assert one.spec.id != sweeps.order("base=1,2", "factor=3,1,2", target="test/branches").spec.id


def test_points_that_mean_the_same_are_merged_and_that_is_said(sweeps: Sweeps) -> None:
    order = sweeps.order("factor=1,2,01,1", target="test/branches")
    assert [trial.spec.label for trial in order.trials] == ["factor=1", "factor=2"]
    assert order.notes == ("2 points mean the same as earlier ones and are left out: factor=1, …",)


def test_a_size_is_known_before_any_trial_is_made(sweeps: Sweeps) -> None:
    assert draft(sweeps, "factor=range:0:1000000000:1", "base=1,2,3", target="test/branches").size == 3_000_000_000
    assert draft(sweeps, target="test/branches").size == 1


def test_every_way_of_being_wrong_is_told_once_with_the_first_trial_that_showed_it(sweeps: Sweeps) -> None:
    with pytest.raises(InvalidArgs) as raised:
        sweeps.order("values=[1],[13],[2,13]", "plus=1,2", target="test/sum")
    (fault,) = faults_of(raised)
    assert fault.startswith("test/sum.values: thirteen is not added up, with values=")
    assert fault.endswith("plus=1 and 3 more trials")
    assert str(raised.value) == fault


def test_what_all_trials_lack_is_said_only_if_nothing_else_is_wrong_with_any() -> None:
    lack = MissingRepoFiles(argument="base", repo="org/name", names=("a",), whole=("a", "b"))
    absent = InvalidArgs("", faults=(Diagnostic("base", "not here"),), lacks=(lack,))
    for others, lacks in (((absent,), (lack,)), ((InvalidArgs("", faults=(Diagnostic("rank", "too large"),)),), ())):
        faulty = TrialDiagnostics()
        for number, error in enumerate((absent, *others)):
            with faulty.of(f"trial {number}"):
                raise error
        with pytest.raises(InvalidArgs) as caught:
            faulty.refuse()
        assert caught.value.lacks == lacks


def test_what_is_wrong_with_every_trial_is_told_of_none(sweeps: Sweeps) -> None:
    with pytest.raises(InvalidArgs, match=r"^test/sum\.values: thirteen is not added up$"):
        sweeps.order("values=[13]", "plus=1,2,3", target="test/sum")


def test_a_single_job_that_can_not_be_has_no_trials_in_its_message(sweeps: Sweeps) -> None:
    with pytest.raises(InvalidArgs, match=r"^test/sum\.values: thirteen is not added up$"):
        sweeps.order("values=[13]", target="test/sum")


def test_words_that_can_not_be_read_wrong_values_and_unfilled_places_are_one_error(sweeps: Sweeps) -> None:
    with pytest.raises(InvalidConfig) as raised:
        draft(sweeps, "n=(", "cpus=many", "x=1", program=("./work.sh", "{n}", "{m}"))
    wheres = [fault.where for fault in raised.value.faults]
    assert [where.partition(":")[0] for where in wheres] == ["argument 1", "argument 2", "{m}"]
    assert str(raised.value) == "3 errors in the configuration"


def test_places_that_nothing_fills_are_named_with_the_nearest_parameter(sweeps: Sweeps) -> None:
    with pytest.raises(InvalidProgram) as raised:
        draft(sweeps, "lr=1,2", program=("./work.sh", "{lrr}", "{depth}"))
    first, second = faults_of(raised)
    assert first == "{lrr}: nothing gives it a value (did you mean 'lr'?)"
    assert "set depth=VALUE before --" in second


def test_a_place_that_only_some_trials_fill_is_a_fault_of_the_others(sweeps: Sweeps) -> None:
    (sweeps.folder / "parts.yaml").write_text("sweep:\n  concat: [{a: [1, 2]}, {a: [3], b: [4]}]\n")
    words = JobRequest(files=("parts.yaml",), program=("./work.sh", "{a}", "{b}"))
    with pytest.raises(InvalidProgram, match=r"^\{b\}: nothing gives it a value, with a=1 and 1 more trial"):
        sweeps.office.builder.build(words)


def test_a_parameter_may_not_be_called_like_a_place(sweeps: Sweeps) -> None:
    with pytest.raises(InvalidProgram, match="out: names a place of its own"):
        draft(sweeps, "out=x", program=("./work.sh",))


def test_what_is_wrong_with_typed_arguments_alone_is_faults_of_arguments(sweeps: Sweeps) -> None:
    with pytest.raises(InvalidArgs) as raised:
        draft(sweeps, "factor=many", "base=-1", "fcator=1", target="test/branches")
    assert str(raised.value) == "3 errors in the arguments of test/branches"
    assert [fault.where for fault in raised.value.faults] == [
        "argument 1: factor",
        "argument 2: base",
        "argument 3: fcator",
    ]
    assert raised.value.hint == "stoker recipes show test/branches"


def test_with_a_file_it_is_the_configuration_that_is_wrong(sweeps: Sweeps) -> None:
    (sweeps.folder / "base.yaml").write_text("factor: many\n")
    with pytest.raises(InvalidConfig) as raised:
        draft(sweeps, "base=-1", target="test/branches", files=("base.yaml",))
    assert {fault.where.partition(":")[0] for fault in raised.value.faults} == {"base.yaml", "argument 1"}


def test_a_required_argument_whose_word_can_not_be_read_is_not_also_missing(sweeps: Sweeps) -> None:
    with pytest.raises(InvalidArgs) as raised:
        draft(sweeps, "data=(", target="test/read")
    assert [fault.where for fault in raised.value.faults] == ["argument 1"]


def test_a_bad_name_is_found_before_anything_is_made(sweeps: Sweeps) -> None:
    with pytest.raises(BadInput, match="can't be a job's name"):
        draft(sweeps, "factor=1,2", target="test/branches", name="a/b")


def test_what_is_given_twice_counts_as_given_last_and_that_is_noted(sweeps: Sweeps) -> None:
    order = sweeps.order("factor=1,2", "factor=3", target="test/branches")
    assert [trial.spec.args["factor"] for trial in order.trials] == [3]
    assert order.notes == ("factor is given twice: factor=3 counts",)


@dataclass(frozen=True)
class Listing:
    targets: tuple[str, ...] = arg(())
    layers: tuple[int, ...] | None = arg(None)
    lr: float = arg(0.1)


def test_a_sweep_over_the_items_of_a_list_is_noted_with_how_the_list_is_written() -> None:
    words = ["targets=q,v", "+layers=1,2,3", "lr=1,2"]
    schema = ArgsSchema(Listing).declared()
    assert list(swept_lists(parse_overrides(words), schema)) == [
        "targets=q,v is a sweep of 2 trials, one value each; for one run with both: 'targets=[q,v]'",
        "+layers=1,2,3 is a sweep of 3 trials, one value each; for one run with all 3: '+layers=[1,2,3]'",
    ]
    lists = ["targets=[q_proj,v_proj]", "layers=[1],[2]"]
    assert not list(swept_lists(parse_overrides(lists), schema))


def test_parameters_that_no_place_takes_are_noted(sweeps: Sweeps) -> None:
    order = sweeps.order("n=1,2", "seed=3", "momentum=1,2")
    (note,) = order.notes
    assert "takes seed, momentum: it can ask stoker_trainer or $STOKER_PARAMS" in note
    assert order.trials[0].spec.args["params"] == {"seed": 3, "n": 1, "momentum": 1}


def test_a_sweep_over_a_setting_of_stoker_is_not_taken_for_a_parameter_of_the_program(sweeps: Sweeps) -> None:
    for name in ("a", "b"):
        (sweeps.folder / name).write_text(name)
    order = sweeps.order("inputs=a,b", "env.DEBUG=1,2", program=("./work.sh",))
    assert len(order.trials) == 4
    assert order.notes == ("inputs=a,b is a sweep of 2 trials, one value each; for one run with both: 'inputs=[a,b]'",)


@pytest.mark.parametrize("words", [("inputs=a",), ("inputs=a,b",), ()])
def test_a_place_named_like_a_setting_is_refused_with_how_to_say_it(sweeps: Sweeps, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidProgram) as raised:
        sweeps.order(*words, program=("./work.sh", "{inputs}"))
    (fault,) = raised.value.faults
    assert (fault.where, fault.message) == ("{inputs}", "is a setting of Stoker's own, not a parameter of the program")
    assert fault.hint.startswith("set a parameter as well: x=VALUE before --, {x} after it")


def test_words_are_filled_with_what_was_typed_and_not_with_what_it_was_read_as(sweeps: Sweeps) -> None:
    order = sweeps.order("n=1e-3,007,on,1_000", "v=.5", program=("./work.sh", "{n}", "--v={v}", "{{n}}"))
    assert [trial.spec.args["argv"][1] for trial in order.trials] == ["1e-3", "007", "on", "1_000"]
    assert order.trials[0].spec.args["argv"][2:] == ("--v=.5", "{{n}}")


@pytest.mark.parametrize(("at_once", "cores"), [(1, 4), (2, 2), (3, 1), (16, 1)])
def test_programs_that_run_at_once_share_the_cores(sweeps: Sweeps, at_once: int, cores: int) -> None:
    wanted = JobRequest(overrides=("n=1,2",), program=("./work.sh", "{n}"), at_once=at_once)
    order = sweeps.office.builder.build(wanted)
    assert order.plan.node("1.run").needs.cpu == cores


def test_a_job_keeps_what_it_was_ordered_with(sweeps: Sweeps) -> None:
    order = sweeps.order("n=1,2", "x=3")
    config = loads(order.papers[CONFIG])
    assert config["program"] == ["./work.sh", "{n}"]
    assert set(config["code"]) == {"work.sh"}
    assert config["sweep"] == {"n": "argument 1 (n=1,2)"}
    folder = JobFolder.begin(
        sweeps.office.runs, sweeps.office.builder.new_attempt(order.spec, {}), mine(), order.papers
    )
    kept = read_trials(folder)
    assert [(one.spec.label, one.spec.point, one.spec.id) for one in kept] == [
        (one.spec.label, one.spec.point, one.spec.id) for one in order.trials
    ]


def test_an_order_taken_again_has_the_same_trials_and_knows_its_program(sweeps: Sweeps) -> None:
    first = sweeps.order("n=1,2", "x=3")
    job = sweeps.run(first)
    again = sweeps.office.builder.build(JobRequest(earlier=job.folder))
    assert again.program is not None
    assert again.program.argv == ("./work.sh", "{n}")
    assert again.program.family() == first.program.family()  # type: ignore[union-attr]
    assert [(one.spec, one.nodes) for one in again.trials] == [(one.spec, one.nodes) for one in first.trials]
    assert again.papers[CONFIG] == first.papers[CONFIG]


def test_an_order_taken_again_sees_todays_files(sweeps: Sweeps) -> None:
    job = sweeps.run(sweeps.order("n=1,2"))
    before = sweeps.office.builder.build(JobRequest(earlier=job.folder)).code
    with open(sweeps.folder / "work.sh", "a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert sweeps.office.builder.build(JobRequest(earlier=job.folder)).code != before


def test_a_job_from_before_there_was_a_configuration_is_one_trial(office: Office) -> None:
    job = office.run("test/sum")
    for name in ("config.json", "trials.jsonl"):
        Path(job.folder.path, name).unlink()
    folder = JobFolder(job.folder.path)
    assert read_config(folder) == {}
    (only,) = trials_of_job(folder)
    assert (only.spec.number, only.spec.label, only.spec.args) == (1, "", folder.spec().args)
    assert office.builder.build(JobRequest(earlier=folder)).spec.id == folder.spec().id


@pytest.mark.parametrize("word", ["lr=range:5:5", "lr=log:1e-3:1e-1", "lr=1e-3,"])
def test_a_place_whose_setting_can_not_be_read_is_not_a_second_fault(sweeps: Sweeps, word: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        draft(sweeps, word, program=("echo", "{lr}", "{seed}"))
    assert [fault.where for fault in raised.value.faults] == ["argument 1", "{seed}"]


def test_a_misspelt_setting_of_a_program_is_noted(sweeps: Sweeps) -> None:
    order = sweeps.office.builder.build_composed(draft(sweeps, "memmory=8G", program=("echo",)))
    assert order.notes[0] == "memmory is no setting of a program's run (did you mean 'memory'?)"
