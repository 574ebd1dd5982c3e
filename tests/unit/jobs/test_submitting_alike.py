"""Orders that are made after the likeness of a first one are what they would be if each were made by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.job import JobSpec
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs import recipe_specs
from stoker.jobs.program_specs import ProgramSpecVariants
from stoker.jobs.request import JobRequest
from stoker.jobs.submission import prepare
from stoker.protocol.job_messages import JOB_BODY
from tests.unit.jobs.conftest import Office

PROGRAMS = {
    "plain": "command = 'python train.py --lr {lr} --seed={seed}'\nsweep = { lr = [0.0, -0.0, 1], seed = [1, 2] }",
    "a word that names a file": "command = 'python train.py {conf}'\nsweep = { conf = ['x', 'a.yaml', 'b.yaml', 'y'] }",
    "the first names a file": "command = 'python train.py {conf}'\nsweep = { conf = ['a.yaml', 'x', 'y'] }",
    "a word before a module": "command = 'python {how} train'\nsweep = { how = ['-O', '-m', '-B'] }",
    "a module": "command = 'python -m {what}'\nsweep = { what = ['train', 'other'] }",
    "the program": "command = '{which} train.py'\nsweep = { which = ['python', 'a.yaml', 'python3'] }",
    "inner paths": "command = 'run {a.b} {a.c}'\nhyper = { a = { c = 3 } }\nsweep = { 'a.b' = [1, 2] }",
    "maps and lists": "command = 'run {a}'\nhyper = { b = [1, 2] }\nsweep = { a = [1, [2, 'x'], true, '1'] }",
    "several sweeps": "command = 'run {a} {b}'\nsweep = { concat = [{ a = [1], b = [1] }, { b = [3], a = [2] }] }",
    "braces": "command = 'run {a} {{a}} ${HOME} {out}'\nsweep = { a = ['{b}', '}', ''] }",
    "more in the id": "command = 'run {a}'\nsweep = { a = [1, 2] }\ntrain_hosts = ['x']\nsplit_recipe = { by = 1 }",
}
RECIPES = {
    "tables": "".join(
        f'[[jobs]]\nname = "{name}"\nrecipe = "test/sum"\n{more}\n'
        for name, more in {
            "a": "hyper = { plus = 1 }",
            "b": "hyper = { plus = 2 }\nmin_ram_gib = 3",
            "c": "hyper = { plus = 3 }\nmin_ram_gib = 3",
            "d": "sweep = { plus = [4, 5] }\npriority = 2\nmin_ram_gib = 3",
            "e": "hyper = { plus = 6 }\npriority = 2\nmin_ram_gib = 3",
            "f": "hyper = { plus = 7 }\nsplit_recipe = { by = 1 }",
            "g": "hyper = { plus = 7 }\nsplit_recipe = \"{'by': 1}\"",
            "h": 'hyper = { values = [1, 2] }\nafter = ["a"]\nattempts = 2\ntimeout = "1h"',
        }.items()
    ),
}


def read(office: Office, text: str) -> list[JobSpec]:
    folder = office.folder / "project"
    folder.mkdir(exist_ok=True)
    for name in ("train.py", "a.yaml", "b.yaml"):
        (folder / name).write_text("# " + name)
    path: Path = folder / "m.toml"
    path.write_text(text)
    code = CodeIdentity(str(office.folder / "code.json"))
    return [*prepare(JobRequest(target=str(path), is_manifest=True), builder=office.builder, code=code).jobs]


@pytest.mark.parametrize("job", PROGRAMS.values(), ids=PROGRAMS)
def test_points_of_a_program_are_what_each_is_by_itself(
    office: Office, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'[[jobs]]\nname = "p"\n{job}\n'
    quick = read(office, text)
    monkeypatch.setattr(ProgramSpecVariants, "spec", lambda *_: None)
    slow = read(office, text)
    assert len(quick) > 1
    assert [JOB_BODY.dump_json(order) for order in quick] == [JOB_BODY.dump_json(order) for order in slow]


@pytest.mark.parametrize("text", RECIPES.values(), ids=RECIPES)
def test_jobs_of_one_sort_are_what_each_is_by_itself(
    office: Office, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = read(office, text)

    def alone(fields: dict[str, object], own: dict[str, object]) -> JobSpec:
        return JOB_BODY.validate_python(fields | own)

    monkeypatch.setattr(recipe_specs, "spec_alike", alone)
    slow = read(office, text)
    assert [JOB_BODY.dump_json(order) for order in quick] == [JOB_BODY.dump_json(order) for order in slow]
    by_name = {order.name: order for order in quick}
    assert [by_name[name].requirements.ram_bytes >> 30 for name in "bcde"] == [3, 3, 3, 3]
    assert [by_name[name].number for name in "ce"] == [0, 0]
    assert [by_name[name].priority for name in "cde"] == [0, 2, 2]
    assert by_name["f"].split_recipe == {"by": 1}
    assert by_name["g"].split_recipe == "{'by': 1}"
    assert by_name["h"].after == ("a",)
