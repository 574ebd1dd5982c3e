from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.core.errors import BadInput, InvalidArgs, InvalidFile, InvalidPlan, LocalFile, UnknownRecipe
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps
from stoker.engine.plan_file import plan_to_json
from stoker.host.identity import mine
from stoker.jobs.builder import JobBuild, check_name
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.request import JobRequest
from stoker.jobs.trials import write_trials
from tests.unit.jobs.conftest import Office


def test_an_order_is_a_plan_and_what_was_wanted(office: Office) -> None:
    order = office.order("test/sum", values="[3,4]", plus="1")
    assert [node.id for node in order.plan.nodes] == ["number", "number-2", "add"]
    spec = order.spec
    assert (spec.name, spec.recipe, spec.folder) == ("sum", "test/sum", str(office.folder))
    assert spec.args == {"values": (3, 4), "plus": 1, "ledger": ""}
    assert len(spec.id) == 64
    attempt = office.builder.new_attempt(spec, {})
    assert (attempt.spec, attempt.stoker, attempt.id[8]) == (spec, "1.2.3", "-")


def test_a_bare_last_name_will_do(office: Office) -> None:
    assert office.order("sum").spec.recipe == "test/sum"


def test_an_unknown_recipe_is_answered_with_the_nearest(office: Office) -> None:
    with pytest.raises(UnknownRecipe) as raised:
        office.order("test/smu")
    assert raised.value.hint == "did you mean 'test/sum'?"


def test_every_fault_of_the_arguments_is_told_at_once_and_once(office: Office) -> None:
    with pytest.raises(InvalidArgs) as raised:
        office.order("test/sum", values="[1,x]", plus="much", plsu="3")
    told = [fault.where for fault in raised.value.faults]
    assert told == ["argument 1: values", "argument 2: plus", "argument 3: plsu"]
    assert "3 errors" in str(raised.value)
    assert raised.value.hint == "stoker recipes show test/sum"


def test_one_fault_is_its_own_headline(office: Office) -> None:
    with pytest.raises(InvalidArgs, match="argument 1: values: must be at least 0, got -1"):
        office.order("test/sum", values="[1,-1]")


def test_what_a_recipe_refuses_itself_is_passed_on(office: Office) -> None:
    with pytest.raises(InvalidArgs, match="thirteen"):
        office.order("test/sum", values="13")


def test_a_plan_that_is_wired_wrongly_is_passed_on(office: Office) -> None:
    with pytest.raises(InvalidPlan, match="fed by nothing"):
        office.order("test/crooked")


def test_a_recipe_gives_the_kind_that_it_promises(office: Office) -> None:
    with pytest.raises(InvalidPlan, match="number: gives test-number@1, but recipe test/liar promises test-blob@1"):
        office.order("test/liar")


def test_the_id_of_a_job_is_what_changes_its_result(office: Office) -> None:
    same = office.order("test/sum", values="[1,2]", ledger="x").spec.id
    assert office.order("test/sum", values="[1, 2]", plus="0", ledger="y", name="other").spec.id == same
    assert office.order("test/sum", values="[2,1]").spec.id != same
    assert office.order("test/sum", plus="1").spec.id != same


def test_files_count_by_what_they_hold_and_are_remembered_by_where_they_lie(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (office.folder / name).write_text(text)
    monkeypatch.chdir(office.folder)
    orders = {name: office.order("test/read", data=name, more="[a,b]") for name in "abc"}
    assert orders["a"].spec.id == orders["b"].spec.id != orders["c"].spec.id
    assert orders["a"].spec.args == {
        "data": f"{office.folder}/a",
        "more": [f"{office.folder}/a", f"{office.folder}/b"],
        "maybe": None,
        "title": "",
    }


def test_a_file_that_is_not_there_is_a_fault(office: Office) -> None:
    with pytest.raises(InvalidFile, match="no such file or folder"):
        office.order("test/read", data="nowhere.csv")


# --- plan files ----------------------------------------------------------------------------------


def plan_file(office: Office, order: JobBuild, name: str = "plan.json") -> str:
    path = office.folder / name
    path.write_text(dumps(plan_to_json(order.plan)))
    return str(path)


def test_a_plan_file_is_ordered_by_its_path(office: Office) -> None:
    path = plan_file(office, office.order("test/sum", values="[1,2]"))
    order = office.order(path)
    assert (order.spec.name, order.spec.recipe, order.spec.args) == ("sum", path, {})
    assert [node.id for node in order.plan.nodes] == ["number", "number-2", "add"]
    assert office.execution(order).run().error is None


def test_a_plan_file_takes_no_arguments(office: Office) -> None:
    path = plan_file(office, office.order("test/sum"))
    with pytest.raises(BadInput, match="takes no arguments, got plus"):
        office.order(path, plus="1")


def test_a_plan_file_that_is_not_there_is_told(office: Office) -> None:
    with pytest.raises(LocalFile):
        office.order(str(office.folder / "none.json"))


def test_the_id_of_a_plan_file_is_its_content_and_that_of_its_files(office: Office) -> None:
    for name in ("a", "b"):
        (office.folder / name).write_text("same")
    ids = {
        office.order(
            plan_file(office, office.order("test/read", data=str(office.folder / name)), f"{name}.json")
        ).spec.id
        for name in ("a", "b")
    }
    assert len(ids) == 1
    (office.folder / "b").write_text("other")
    assert office.order(str(office.folder / "b.json")).spec.id not in ids


def test_what_a_plan_file_asks_of_the_machine_is_no_part_of_its_id(office: Office) -> None:
    path = office.folder / "plan.json"
    body = plan_to_json(office.order("test/sum").plan)
    ids = set()
    for needs in ({}, {"needs": {"memory_gib": 1}}, {"needs": {"cpu": 2}}):
        body["nodes"]["add"] = {"stage": "test/add", "args": body["nodes"]["add"]["args"], **needs}
        path.write_text(dumps(body))
        ids.add(office.order(str(path)).spec.id)
    assert len(ids) == 1


# --- again ---------------------------------------------------------------------------------------


def test_an_earlier_order_is_taken_again(office: Office) -> None:
    done = office.run("test/sum", values="5", plus="2", name="five")
    again = office.builder.build(JobRequest(earlier=done.folder))
    assert (again.spec.name, again.spec.id) == ("five", done.folder.spec().id)
    execution = office.execution(again)
    assert execution.attempt.id != done.folder.attempt
    end = execution.run().folder.ended()
    assert end is not None
    assert end.ran == 0


def test_an_earlier_plan_file_is_read_again(office: Office) -> None:
    path = plan_file(office, office.order("test/sum"))
    done = office.execution(office.order(path)).run()
    body = json.loads(Path(path).read_text())
    body["nodes"]["add"]["args"]["value"] = 100
    Path(path).write_text(json.dumps(body))
    assert office.builder.build(JobRequest(earlier=done.folder)).plan.node("add").args["value"] == 100


@pytest.mark.parametrize("words", [(), ("plus=1,2",)], ids=["one", "sweep"])
def test_fields_that_options_set_are_in_the_job_and_its_trials_and_stay_when_it_is_built_again(
    office: Office, words: tuple[str, ...]
) -> None:
    request = JobRequest(target="test/sum", overrides=words, fields={"timeout_s": 5.0, "after": ("prep",)})
    plain, build = office.builder.build(changed(request, fields={})), office.builder.build(request)
    assert build.spec == changed(plain.spec, timeout_s=5.0, after=("prep",))
    assert {trial.spec.timeout_s for trial in build.trials} == {5.0}
    done = office.execution(build).run()
    again = office.builder.build(JobRequest(earlier=done.folder, fields={"timeout_s": 6.0}))
    for spec in (again.spec, *(trial.spec for trial in again.trials)):
        assert (spec.timeout_s, spec.after) == (6.0, ("prep",))
    assert again.spec.id == plain.spec.id


def test_fields_of_an_earlier_plan_file_stay(office: Office) -> None:
    path = plan_file(office, office.order("test/sum"))
    build = office.builder.build(JobRequest(target=path, fields={"timeout_s": 5.0}))
    done = office.execution(build).run()
    assert office.builder.build(JobRequest(earlier=done.folder)).spec == build.spec


def test_an_order_whose_recipe_changed_says_so(office: Office) -> None:
    order = office.order("test/sum")
    trials = [changed(trial, spec=changed(trial.spec, args={"values": [1], "old": True})) for trial in order.trials]
    papers = {"trials.jsonl": write_trials(trials)}
    folder = JobFolder.begin(office.runs, office.builder.new_attempt(order.spec, {}), mine(), papers)
    with pytest.raises(InvalidArgs, match="no longer takes these arguments"):
        office.builder.build(JobRequest(earlier=folder))


@pytest.mark.parametrize("name", ["gbt", "gbt-2", "lr=0.1,depth=3", "a.b_c", "Ünï"])
def test_names_that_a_folder_may_have(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "last", "a/b", "-x", "a b", "a\n", "a\x00", "~", "*"])
def test_names_that_a_folder_may_not_have(name: str) -> None:
    with pytest.raises(BadInput, match="can't be a job's name"):
        check_name(name)
