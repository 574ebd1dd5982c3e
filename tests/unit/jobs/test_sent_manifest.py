"""A manifest that came as a text: what it makes, what is wrong, and what can't be submitted without its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import LocalFile
from stoker.core.frozen import changed
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs.sent_manifest import CheckedManifest, check_manifest_text
from stoker.protocol.job_checks import identity_fault
from tests.unit.jobs.conftest import Office


class Reader:
    """Reads texts, with a file beside that none of them may reach."""

    def __init__(self, office: Office) -> None:
        self.folder = office.folder
        (self.folder / "secret.txt").write_text("hidden")
        self._builder = changed(office.builder, folder=str(self.folder))
        self._code = CodeIdentity(str(office.folder / "code.json"))

    def read(self, text: str, name: str = "m.toml", known: tuple[str, ...] | None = None) -> CheckedManifest:
        return check_manifest_text(name, text, builder=self._builder, code=self._code, known_jobs=known)

    def refused(self, keys: str, recipe: str = "test/read") -> str:
        """Return why the only job of a manifest needs its folder."""
        made = self.read(f'[[jobs]]\nname = "a"\nrecipe = "{recipe}"\n{keys}')
        assert made.prepared is None
        assert "hidden" not in repr(made)
        (entry,) = made.entries
        return entry.why_not or " ".join(f"{one.message} {one.hint}" for one in made.diagnostics)


@pytest.fixture
def reader(office: Office) -> Reader:
    return Reader(office)


SUM = '[[jobs]]\nname = "added"\nrecipe = "test/sum"\n'


def test_the_jobs_are_those_of_the_file_submitted_from_its_folder(reader: Reader, office: Office) -> None:
    made = reader.read(f"{SUM}sweep = {{ plus = [1, 2, 3] }}\npriority = 4")
    assert made.diagnostics == ()
    ((entry),) = made.entries
    assert (entry.name, entry.line, entry.does, entry.count, entry.why_not) == ("added", 1, "test/sum", 3, "")
    assert made.prepared is not None
    jobs = made.prepared.jobs
    assert [(one.name, one.number, one.label, one.priority, one.folder) for one in jobs] == [
        ("added", at, f"plus={at}", 4, "") for at in (1, 2, 3)
    ]
    assert [identity_fault(one) for one in jobs] == [""] * 3
    assert made.prepared.shipments == ()
    here = office.order("test/sum", plus="1,2,3")
    assert [one.id for one in jobs] == [trial.spec.id for trial in here.trials]


def test_all_faults_come_at_once_with_line_and_key(reader: Reader) -> None:
    text = f'{SUM}hyper = {{ pluss = 1 }}\ngpus = "two"\n\n[[jobs]]\nname = "b"\nrecipe = "test/nothing"\n'
    made = reader.read(text, known=())
    assert made.prepared is None
    assert [(one.line, one.key) for one in made.diagnostics] == [
        (4, "jobs[0].hyper.pluss"),
        (5, "jobs[0].gpus"),
        (9, "jobs[1].recipe"),
    ]
    assert made.count == 3
    assert all(one.message and one.shown for one in made.diagnostics)


def test_a_torn_file_has_its_line(reader: Reader) -> None:
    (one,) = reader.read("[[jobs]\nname = 1\n").diagnostics
    assert one.line == 1
    (one,) = reader.read("jobs: [\n", "m.yaml").diagnostics
    assert one.line
    with pytest.raises(LocalFile):
        reader.read("", "m.txt")


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "/etc/passwd", "secret.txt", "./secret.txt", "~/.ssh/id_rsa", "/proc/self/environ"],
)
def test_no_path_is_read_or_looked_for(reader: Reader, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader.folder)
    for keys in (f'hyper = {{ data = "{path}" }}', f'sweep = {{ data = ["{path}"] }}'):
        assert reader.refused(keys)
    here = reader.refused(f'hyper = {{ data = "{path}" }}')
    missing = reader.refused(f'hyper = {{ data = "{path}-no" }}')
    assert here.replace(path, "") == missing.replace(f"{path}-no", ""), "whether it is there is not to be told"


@pytest.mark.parametrize(
    ("keys", "recipe"),
    [
        ('hyper = { data = "x", title = "../../etc/passwd" }', "test/read"),
        ('hyper = { data = "x", more = ["secret.txt"] }', "test/read"),
        ('hyper = { base = "org/name" }', "test/tuned"),
        ('hyper = { base = "secret.txt" }', "test/tuned"),
        ('sweep = { grid = { base = ["secret.txt"] } }', "test/tuned"),
        ('hyper = { plus = "${oc.env:HOME}" }', "test/sum"),
        ('hyper = { plus = "${file:/etc/passwd}" }', "test/sum"),
        ('data = { DATA = "/etc/passwd" }', "test/sum"),
        ('include = ["secret.txt"]', "test/sum"),
        ('env = "requirements.txt"', "test/sum"),
    ],
)
def test_what_names_a_file_or_a_variable_is_refused_with_its_reason(reader: Reader, keys: str, recipe: str) -> None:
    assert reader.refused(keys, recipe)


def test_programs_need_their_folder_and_the_faults_of_others_are_still_found(reader: Reader) -> None:
    text = f'[[jobs]]\nname = "p"\ncommand = "python train.py"\nenv = "uv.lock"\n\n{SUM}hyper = {{ values = [13] }}'
    made = reader.read(text)
    assert [one.key for one in made.diagnostics] == ["jobs[1].hyper.values"]
    program, added = made.entries
    assert program.why_not == "its command runs code of the manifest's folder; and so is env"
    assert (program.does, program.line, added.faults, added.line) == ("python train.py", 1, 1, 6)
    alone = reader.read('[[jobs]]\nname = "p"\ncommand = "python train.py"')
    assert (alone.prepared, alone.diagnostics) == (None, ())


def test_other_jobs_may_be_waited_for_if_they_are_known(reader: Reader) -> None:
    text = f'{SUM}after = ["earlier"]'
    assert reader.read(text, known=("earlier",)).prepared is not None
    (one,) = reader.read(text, known=()).diagnostics
    assert "earlier" in one.message


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, levels)]
    return "\n".join([*lines, f"jobs: *a{levels - 1}"])


def test_a_yaml_bomb_is_a_fault_and_costs_nothing(reader: Reader) -> None:
    made: Any = reader.read(bomb(12), "m.yaml")
    assert made.prepared is None
    assert made.count >= 1


def test_a_sweep_of_too_many_points_is_a_fault(reader: Reader) -> None:
    made = reader.read(f'{SUM}sweep = {{ plus = "range:0:100000000:1" }}')
    assert made.prepared is None
    assert made.count == 1
    assert not list(Path(reader.folder).glob("*.tmp"))
