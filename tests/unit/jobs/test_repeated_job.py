"""A fleet's job again with other values: what is kept, what is checked, and the line that does the same."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from stoker.core.errors import BadInput, InvalidArgs, InvalidInput
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.core.jsontext import dumps, loads
from stoker.core.machine import DevicePreference
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs.repeated_job import (
    RepeatBuilder,
    RepeatedJob,
    RepeatRequest,
    command_line,
    differences,
    name_again,
    program_words,
    repeat_line,
    settings_to_change,
    words_of_line,
)
from stoker.jobs.requirements import PlanShapes
from stoker.protocol.job_checks import identity_fault
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.test_submitting_typed import orders

PROGRAM = ("python", "train.py", "--lr", "{lr}", "--note={note}")


def stored(spec: JobSpec) -> JobSpec:
    """The job as a coordinator has it: with lists in place of tuples."""
    return JobSpec.from_json(loads(dumps(spec.to_json())))


def again(office: Office, spec: JobSpec, *changes: str, **more: Any) -> RepeatedJob:
    builder = changed(office.builder, readable=(), folder="/elsewhere")
    shapes = PlanShapes(builder, CodeIdentity(str(office.folder / "code.json")))
    made = RepeatBuilder(builder=builder, shapes=shapes).repeat(stored(spec), RepeatRequest(changes=changes, **more))
    assert identity_fault(made.spec) == "", "a coordinator accepts it"
    return made


@pytest.fixture
def program(office: Office) -> JobSpec:
    (office.folder / "train.py").write_text("print(1)")
    words = ("lr=1e-3", "note=a b", "memory=8G", "env.TOKEN=secret")
    (one,) = orders(office, *words, program=PROGRAM, name="net", priority=3).jobs
    return one


def test_a_program_keeps_its_words_with_their_places(program: JobSpec) -> None:
    assert program.words == PROGRAM
    assert program_words(program) == PROGRAM
    assert program.args["argv"][3:] == ("1e-3", "--note=a b")


def test_a_program_without_places_is_stored_as_before(office: Office) -> None:
    (one,) = orders(office, program=("true",)).jobs
    assert "words" not in one.to_json()
    assert program_words(one) == ("true",)


def test_points_of_a_sweep_keep_the_words_too(office: Office) -> None:
    made = orders(office, "lr=1e-3,1e-4", program=("echo", "{lr}")).jobs
    assert [one.words for one in made] == [("echo", "{lr}")] * 2
    assert [name_again(one) for one in made] == ["echo-1", "echo-2"]


def test_another_value_fills_the_places_anew_and_all_else_stays(office: Office, program: JobSpec) -> None:
    new = again(office, program, "lr=5e-4").spec
    assert new.args["argv"] == ("python", "train.py", "--lr", "5e-4", "--note=a b")
    assert new.args["params"] == {"lr": 5e-4, "note": "a b"}
    assert (new.name, new.number, new.words, new.priority) == ("net", 0, PROGRAM, 3)
    assert new.id != program.id
    for field in ("project", "folder", "inputs", "environment", "code", "requirements"):
        assert getattr(new, field) == getattr(stored(program), field), field
    assert new.args["env"] == {"TOKEN": "secret"}, "a reader does not see it, the job has it"
    assert differences(stored(program), new) == ("lr: 0.001 → 0.0005",)


def test_a_value_that_was_not_touched_stands_as_it_was_typed(office: Office, program: JobSpec) -> None:
    new = again(office, program, "note=x").spec
    assert new.args["argv"][3] == "1e-3"


def test_the_words_themselves_can_be_others(office: Office, program: JobSpec) -> None:
    made = again(office, program, words=("python", "train.py", "{lr}"), name="short")
    assert made.spec.args["argv"] == ("python", "train.py", "1e-3") or made.spec.args["argv"][2] == "0.001"
    assert made.spec.name == "short"
    assert any("note" in note for note in made.notes), "a parameter that no place takes any more is said"
    with pytest.raises(InvalidInput, match="seed"):
        again(office, program, words=("python", "train.py", "{seed}"))


def test_settings_move_what_the_job_requires_and_nothing_else_of_it(office: Office, program: JobSpec) -> None:
    wanted = changed(program.requirements, cores=5)
    new = again(office, changed(program, requirements=wanted), "vram=6G", "timeout=2h").spec
    assert (new.requirements.wish, new.requirements.vram_bytes) == (DevicePreference.REQUIRE, 6 << 30)
    assert (new.requirements.cores, new.requirements.ram_bytes) == (5, wanted.ram_bytes)
    assert new.timeout_s == 7200.0
    assert (new.id, new.name) == (program.id, program.name), "no value of its result differs: it is the same job"
    with pytest.raises(InvalidArgs, match="shares"):
        again(office, program, "shares=true")


def test_variables_are_not_shown_and_files_can_not_be_changed(office: Office, program: JobSpec) -> None:
    assert settings_to_change(program).keys() >= {"lr", "note", "memory"}
    assert not [path for path in settings_to_change(program) if path.startswith(("env", "argv", "folder", "data"))]
    for word in (
        "folder=/etc",
        "data.DATA=/etc/passwd",
        "inputs=[/etc/passwd]",
        "python=/bin/sh",
        "code.x=/etc/passwd",
    ):
        with pytest.raises(InvalidInput):
            again(office, program, word)


def test_a_recipes_values_are_checked_as_always(office: Office) -> None:
    (one,) = orders(office, "values=[3,4]", target="test/sum", name="added").jobs
    assert settings_to_change(stored(one)) == {"values": "[3,4]", "plus": "0", "ledger": '""'}
    new = again(office, one, "plus=2", "values=[5]").spec
    assert (new.args["plus"], new.args["values"]) == (2, (5,))
    assert new.id == orders(office, "values=[5]", "plus=2", target="test/sum").jobs[0].id
    with pytest.raises(InvalidArgs) as raised:
        again(office, one, "plus=x", "pluss=2", "values=1,2", "title=/etc/passwd")
    assert [fault.where for fault in raised.value.faults] == ["plus", "pluss", "values", "title"]
    assert "plus" in raised.value.faults[1].hint
    with pytest.raises(InvalidArgs, match="thirteen"):
        again(office, one, "values=[13]")


def test_a_recipes_data_stays_where_it_is(office: Office) -> None:
    (office.folder / "words.txt").write_text("a b")
    (one,) = orders(office, "data=words.txt", target="test/read").jobs
    (office.folder / "words.txt").unlink()
    new = again(office, one, "title=other").spec
    assert (new.inputs, new.identity["data"]) == (one.inputs, one.identity["data"])
    assert "data" not in settings_to_change(one)
    with pytest.raises(InvalidArgs, match="data names code, data or environment"):
        again(office, one, "data=../../etc/passwd")


def test_a_job_that_is_no_other_is_no_new_job(office: Office, program: JobSpec) -> None:
    with pytest.raises(BadInput, match="nothing differs from net") as raised:
        again(office, program)
    assert "stoker jobs requeue net" in raised.value.hint
    with pytest.raises(BadInput, match="nothing differs from net"):
        again(office, program, "lr=1e-3")
    with pytest.raises(BadInput, match="can't be a job's name"):
        again(office, program, "lr=1", name="a/b")


def test_the_line_that_does_the_same_is_read_back(program: JobSpec) -> None:
    request = RepeatRequest(changes=("lr=1", "note=a b"), words=PROGRAM, name="x")
    line = repeat_line("net/3", request)
    assert line == "stoker submit --again net/3 lr=1 'note=a b' --name x -- python train.py --lr {lr} --note={note}"
    assert shlex.split(line)[9:] == list(PROGRAM)
    assert words_of_line(command_line(("a b", "{a,b}", "$x", "{lr}"))) == ("a b", "{a,b}", "$x", "{lr}")
    assert "'{a,b}'" in command_line(("{a,b}",)), "a shell would make two words of it"
    with pytest.raises(InvalidArgs, match="close the quotes"):
        words_of_line("python 'train.py")
