"""From a manifest to orders: what each job becomes, what its id is made of, and every fault with its place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stoker.config.manifest_file import read_manifest_into
from stoker.config.manifest_rules import KnownNames
from stoker.core.device import GIB
from stoker.core.errors import InvalidManifest
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, job_id
from stoker.core.leases import Partition
from stoker.core.machine import DevicePreference
from stoker.engine.catalogue import Catalogue, CookbookSource
from stoker.engine.code_identity import OWN, CodeIdentity
from stoker.jobs.builder import JobBuilder
from stoker.jobs.manifest_checks import check_values
from stoker.jobs.pack.code_tree import PreparedSubmission
from stoker.jobs.request import JobRequest
from stoker.jobs.submission import prepare
from stoker.protocol.job_checks import identity_fault
from tests.unit.jobs.conftest import Office


class Drawer:
    """Manifests in a folder of their own."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.folder = office.folder / "project"
        self.folder.mkdir()
        self.code = CodeIdentity(str(office.folder / "code.json"))

    def read(self, text: str, *, name: str = "m.toml", known: tuple[str, ...] | None = None) -> PreparedSubmission:
        path = self.folder / name
        path.write_text(text)
        builder = changed(self.office.builder, folder=str(self.folder))
        return prepare(JobRequest(target=name, is_manifest=True), builder=builder, code=self.code, known_jobs=known)

    def one(self, text: str) -> JobSpec:
        (order,) = self.read(text).jobs
        return order

    def faults(self, text: str, **more: Any) -> list[str]:
        with pytest.raises(InvalidManifest) as raised:
            self.read(text, **more)
        assert all(fault.shown for fault in raised.value.faults)
        return [str(fault) for fault in raised.value.faults]


@pytest.fixture
def drawer(office: Office) -> Drawer:
    return Drawer(office)


def is_honest(order: JobSpec) -> bool:
    """Return whether the id is that of what the order says it is made of: a coordinator looks."""
    return order.id == job_id(
        recipe=order.recipe,
        schema_version=order.schema_version,
        args=order.identity,
        mode=order.mode,
        seed=order.seed,
        split_recipe=order.split_recipe,
        train_hosts=order.train_hosts,
    )


SUM = '[[jobs]]\nname = "sums"\nrecipe = "test/sum"\n'
MINE = '[[jobs]]\nname = "mine"\ncommand = "python train.py --lr {lr}"\n'


def test_a_job_of_a_recipe_has_its_defaults_filled(drawer: Drawer) -> None:
    order = drawer.one(SUM + "hyper = { plus = 3 }\npriority = 5")
    assert order.args == {"values": (1, 2), "plus": 3, "ledger": ""}
    assert order.identity == {"values": [1, 2], "plus": 3}
    assert (order.name, order.number, order.recipe, order.schema_version) == ("sums", 0, "test/sum", 3)
    assert (order.priority, order.folder) == (5, str(drawer.folder))
    assert list(order.code) == ["test/sum"]
    assert is_honest(order)


def test_the_id_is_that_of_the_same_thing_run_here(drawer: Drawer) -> None:
    here = drawer.office.order("test/sum", plus="3")
    assert drawer.one(SUM + "hyper = { plus = 3 }").id == here.spec.id


def test_three_lines_are_a_whole_file(drawer: Drawer) -> None:
    (drawer.folder / "train.py").write_text("print(1)")
    order = drawer.one('[[jobs]]\nname = "mine"\ncommand = "python train.py"')
    assert order.args["argv"] == ("python", "train.py")
    assert order.code.keys() == {"train.py"}
    assert order.requirements.wish is DevicePreference.NEVER
    assert order.requirements.ram_bytes == 4 * GIB
    assert is_honest(order)


def test_a_sweep_is_a_job_for_every_point(drawer: Drawer) -> None:
    orders = drawer.read(SUM + 'hyper = { values = [4] }\nsweep = { plus = "range:3" }').jobs
    assert [(one.number, one.label, one.point, one.args["plus"]) for one in orders] == [
        (1, "plus=0", {"plus": 0}, 0),
        (2, "plus=1", {"plus": 1}, 1),
        (3, "plus=2", {"plus": 2}, 2),
    ]
    assert len({one.id for one in orders}) == 3
    assert all(one.args["values"] == (4,) and is_honest(one) for one in orders)


def test_points_that_mean_the_same_are_one_job_and_told(drawer: Drawer) -> None:
    orders = drawer.read(SUM + "sweep = { plus = [1, 1.0, 2] }")
    assert [one.label for one in orders.jobs] == ["plus=1", "plus=2"]
    assert "1 point means the same" in orders.notes[0]


def test_a_programs_words_are_filled_from_hyper_sweep_seed_and_mode(drawer: Drawer) -> None:
    text = (
        '[[jobs]]\nname = "mine"\ncommand = "python train.py --lr {lr} --m {mode} --seed {seed} --wd {opt.wd}"\n'
        'sweep = { lr = [1e-3, 1e-4] }\nhyper = { opt = { wd = 0.1 } }\nseed = 7\nmode = "slow"'
    )
    first, second = drawer.read(text).jobs
    words = ("python", "train.py", "--lr", "0.001", "--m", "slow", "--seed", "7", "--wd", "0.1")
    assert first.args["argv"] == words
    assert first.args["params"] == {"opt": {"wd": 0.1}, "seed": 7, "mode": "slow", "lr": 0.001}
    assert (first.mode, second.label) == ("slow", "lr=0.0001")
    assert is_honest(first)
    assert is_honest(second)


def test_what_a_machine_has_is_no_part_of_an_order(drawer: Drawer) -> None:
    (drawer.folder / "train.py").write_text("print(1)")
    order = drawer.read(MINE + "hyper = { lr = 1 }").jobs[0]
    assert (order.args["machine_gpus"], order.args["machine_cpus"], order.args["code"]) == (0, 1, {})


def test_data_is_known_by_what_it_holds_and_found_in_its_variable(drawer: Drawer) -> None:
    text = MINE + 'hyper = { lr = 1 }\ndata = { DATA = "set" }'
    (drawer.folder / "set").mkdir()
    (drawer.folder / "set" / "a").write_text("1")
    first = drawer.one(text)
    assert first.args["data"] == {"DATA": str(drawer.folder / "set")}
    assert first.identity["env"] == {}
    assert is_honest(first)
    (drawer.folder / "set" / "b").write_text("2")
    assert drawer.one(text).id != first.id


def test_a_recipes_file_is_known_by_what_it_holds(drawer: Drawer) -> None:
    text = '[[jobs]]\nname = "words"\nrecipe = "test/read"\nhyper = { data = "words.txt" }'
    file = drawer.folder / "words.txt"
    file.write_text("one two")
    first = drawer.one(text)
    assert first.args["data"] == str(file)
    assert str(drawer.folder) not in str(first.identity)
    file.write_text("three")
    assert drawer.one(text).id != first.id


def test_a_file_that_a_text_names_is_known_by_what_it_holds_and_not_by_where_it_lies(drawer: Drawer) -> None:
    office = drawer.office
    sources = [CookbookSource(name="tabular", value="stoker.cookbooks.tabular:COOKBOOK")]
    office.catalogue = Catalogue(str(office.folder / "tabular.json"), sources)
    text = '[[jobs]]\nname = "t"\nrecipe = "gbt"\nhyper = { data = "table.csv", target = "y" }'
    (drawer.folder / "table.csv").write_text("x,y\n1,2\n")
    first = drawer.one(text)
    assert first.args["data"] == str(drawer.folder / "table.csv")
    assert first.identity["data"].keys() == {"content"}
    drawer.folder = drawer.folder / "moved"
    drawer.folder.mkdir()
    (drawer.folder / "table.csv").write_text("x,y\n1,2\n")
    assert drawer.one(text).id == first.id
    (drawer.folder / "table.csv").write_text("x,y\n1,3\n")
    assert drawer.one(text).id != first.id


def test_code_is_recorded_and_no_part_of_the_id(drawer: Drawer) -> None:
    text = MINE + "hyper = { lr = 1 }"
    (drawer.folder / "train.py").write_text("print(1)")
    first = drawer.one(text)
    (drawer.folder / "train.py").write_text("print(2)")
    second = drawer.one(text)
    assert first.id == second.id
    assert first.code != second.code


def test_the_same_words_in_another_folder_are_another_program(drawer: Drawer, tmp_path: Path) -> None:
    text = MINE + "hyper = { lr = 1 }"
    first = drawer.one(text)
    drawer.folder = tmp_path / "other"
    drawer.folder.mkdir()
    assert drawer.one(text).id != first.id


@pytest.mark.parametrize(
    "more",
    [
        "priority = 9",
        'allowed_hosts = ["a"]',
        "min_ram_gib = 9.0",
        "attempts = 3",
        'timeout = "2h"',
        'expected = "2h"',
        'secrets = ["X"]',
    ],
    ids=str,
)
def test_what_changes_no_result_changes_no_id(drawer: Drawer, more: str) -> None:
    assert drawer.one(SUM + more).id == drawer.one(SUM).id


@pytest.mark.parametrize(
    "more",
    ["hyper = { plus = 1 }", 'mode = "oracle"', 'split_recipe = "by_day"', 'train_hosts = ["a"]'],
    ids=str,
)
def test_what_changes_the_result_changes_the_id(drawer: Drawer, more: str) -> None:
    order = drawer.one(SUM + more)
    assert order.id != drawer.one(SUM).id
    assert is_honest(order)


def test_what_is_wanted_of_the_queue_travels_along(drawer: Drawer) -> None:
    order = drawer.read(
        SUM + '[[jobs]]\nname = "late"\nrecipe = "sum"\nhyper = { plus = 1 }\nafter = ["sums"]\nattempts = 3\n'
        'timeout = "90m"\nexpected = "1h30m"\non_partition = "keep"\nsecrets = ["TOKEN"]\nprefer_hosts = ["desk"]'
    ).jobs[1]
    assert (order.after, order.attempts, order.timeout_s, order.expected_s) == (("sums",), 3, 5400.0, 5400.0)
    assert (order.on_partition, order.secrets, order.prefer_hosts) == (Partition.KEEP, ("TOKEN",), ("desk",))


def test_hosts_say_only_what_the_file_says(drawer: Drawer) -> None:
    orders = drawer.read(SUM + '[[hosts]]\nname = "lab"\ndeny_jobs = ["x"]')
    assert orders.hosts[0].model_dump(exclude_none=True) == {"name": "lab", "deny_jobs": ("x",)}


def test_older_words_load_as_they_are(drawer: Drawer) -> None:
    orders = drawer.read(
        '[[jobs]]\nname = "a"\nmodel = "sum"\nmode = "realistic"\n[[jobs]]\nname = "b"\nmodel = "sum"\nmode = "oracle"'
    )
    first, second = orders.jobs
    assert (first.recipe, first.mode, second.mode) == ("test/sum", "realistic", "oracle")
    assert first.id != second.id
    assert any("has no argument mode" in note for note in orders.notes)


def test_a_device_that_is_asked_for_reaches_the_program(drawer: Drawer) -> None:
    order = drawer.one(MINE + "hyper = { lr = 1 }\nrequire_cuda = true\nmin_vram_gib = 6\nshares = true\ngpus = 2")
    assert (order.args["gpus"], order.args["vram"], order.args["shares"]) == (2, f"{6 * GIB}B", True)
    wants = order.requirements
    assert (wants.wish, wants.device_count, wants.vram_bytes, wants.may_share) == (
        DevicePreference.REQUIRE,
        2,
        6 * GIB,
        True,
    )


def test_a_program_of_several_ranks_is_another_job_and_wants_a_device_for_each(drawer: Drawer) -> None:
    one, two, four = (
        drawer.one(MINE + "hyper = { lr = 1 }\nrequire_cuda = true" + ranks)
        for ranks in ("", "\nranks = 2", "\nranks = 4")
    )
    assert [order.args["ranks"] for order in (one, two, four)] == [None, 2, 4]
    assert [order.requirements.device_count for order in (one, two, four)] == [1, 2, 4]
    assert len({one.id, two.id, four.id}) == 3
    assert all(map(is_honest, (one, two, four)))


def test_ranks_of_a_recipe_that_has_none_are_refused_where_they_stand(drawer: Drawer) -> None:
    (fault,) = drawer.faults(SUM + "ranks = 2")
    assert "m.toml:4:9: jobs[0].ranks: test/sum takes no ranks" in fault


def test_every_fault_of_a_file_is_told_at_once_in_the_order_of_its_lines(drawer: Drawer) -> None:
    text = (
        '[[jobs]]\nname = "a"\nrecipe = "test/sum"\nhyper = { plus = "much", plsu = 3 }\n'
        '[[jobs]]\nname = "b"\nmodel = "cnn"\n'
        '[[jobs]]\nname = "c"\ncommand = "python x.py {lr}"\ndata = { DATA = "nowhere" }\n'
        '[[jobs]]\nname = "d"\nrecipe = "test/sum"\nsweep = { plus = [1, "x"], pluss = [1] }\n'
        '[[jobs]]\nname = "e"\nrecipe = "test/sum"\nhyper = { values = [13] }\n'
        '[[jobs]]\nname = "f"\nrecipe = "test/read"\n'
        '[[jobs]]\nname = "g"\nrecipe = "test/sum"\nmode = "quick"\noutputs = ["runs"]\nseed = 1\n'
    )
    faults = drawer.faults(text)
    assert [int(fault.split(":")[1]) for fault in faults] == [4, 4, 7, 10, 11, 15, 15, 19, 20, 26, 27, 28]
    told = "\n".join(faults)
    for part in (
        "m.toml:4:18: jobs[0].hyper.plus: expected a whole number, got 'much'",
        "m.toml:4:26: jobs[0].hyper.plsu: test/sum has no argument 'plsu' (did you mean 'plus'?)",
        "jobs[1].model: job b: there is no model 'cnn'; there are command, test/",
        "jobs[2].command: {lr} nothing gives it a value",
        "jobs[2].data.DATA: no file or folder nowhere",
        "jobs[3].sweep.plus: expected a whole number, got 'x'",
        "jobs[3].sweep.pluss: test/sum has no argument 'pluss'",
        "jobs[4].hyper.values: thirteen is not added up",
        "jobs[5]: test/read needs data (path)",
        "jobs[6].mode: job g: there is no mode 'quick'; there are oracle, realistic",
        "jobs[6].outputs: test/sum takes no outputs",
        "jobs[6].seed: test/sum takes no seed",
    ):
        assert part in told


def test_one_jobs_wrong_number_is_not_held_against_another(drawer: Drawer) -> None:
    (fault,) = drawer.faults(
        SUM + 'hyper = { values = [13] }\n[[jobs]]\nname = "b"\nrecipe = "sum"\nhyper = { values = [4] }'
    )
    assert "jobs[0].hyper.values: thirteen" in fault


def test_two_names_for_one_job_are_refused(drawer: Drawer) -> None:
    (fault,) = drawer.faults(SUM + '[[jobs]]\nname = "again"\nrecipe = "sum"\nhyper = { plus = 0 }')
    assert "m.toml:5:8: jobs[1].name: job again is the same as sums" in fault


@pytest.mark.parametrize(
    ("again", "is_same"),
    [
        ('recipe = "sum"\nhyper = { plus = 0 }', True),
        ('recipe = "sum"\nmin_ram_gib = 3\nrequire_cuda = true', True),
        ('recipe = "sum"\nhyper = { plus = 1 }', False),
        ('recipe = "sum"\nmode = "oracle"', False),
        ('command = ["python", "train.py"]\nmin_cores = 2', True),
        ('command = ["python", "train.py"]\nhyper = { lr = 1 }', False),
        ('command = ["python", "train.py"]\noutputs = ["out"]', False),
    ],
)
def test_a_check_refuses_two_names_for_one_job_as_submitting_does(drawer: Drawer, again: str, is_same: bool) -> None:
    (drawer.folder / "train.py").touch()
    first = '[[jobs]]\nname = "own"\ncommand = ["python", "train.py"]\n' if "command" in again else SUM
    text = f'{first}\n[[jobs]]\nname = "again"\n{again}\n'

    def check() -> None:
        make = partial(check_values, drawer.office.builder.catalogue)
        read_manifest_into(make, "m.toml", str(drawer.folder / "m.toml"), KnownNames())

    if not is_same:
        assert len(drawer.read(text).jobs) == 2
        check()
        return
    faults = drawer.faults(text)
    with pytest.raises(InvalidManifest) as raised:
        check()
    assert [str(fault) for fault in raised.value.faults] == faults


def test_what_stands_in_hyper_and_beside_it_is_refused(drawer: Drawer) -> None:
    (fault,) = drawer.faults(MINE + "hyper = { lr = 1, seed = 2 }\nseed = 3")
    assert "seed stands in hyper or sweep and beside it" in fault


def test_more_jobs_than_anybody_takes_are_refused_before_they_are_made(drawer: Drawer) -> None:
    (fault,) = drawer.faults(SUM + 'sweep = { plus = "range:1000000" }')
    assert "more than 100,000 jobs" in fault


def test_a_job_to_come_after_may_be_known_elsewhere(drawer: Drawer) -> None:
    text = SUM + 'after = ["prep"]'
    assert drawer.read(text, known=("prep",)).jobs[0].after == ("prep",)
    assert drawer.read(text, known=None).jobs[0].after == ("prep",)
    (fault,) = drawer.faults(text, known=())
    assert "waits for 'prep', and there is no such job" in fault


def test_dotted_names_and_maps_mean_the_same(drawer: Drawer) -> None:
    program = '[[jobs]]\nname = "p"\ncommand = "x {opt.lr}"\n'
    assert drawer.one(program + "hyper = { opt = { lr = 2 } }").args["argv"] == ("x", "2")
    assert drawer.one(program + 'hyper = { "opt.lr" = 2 }').args["argv"] == ("x", "2")


def test_yaml_means_the_same(drawer: Drawer) -> None:
    yaml = "jobs:\n  - name: sums\n    recipe: test/sum\n    hyper: {plus: 3}\n"
    assert drawer.read(yaml, name="m.yaml").jobs[0].id == drawer.one(SUM + "hyper = { plus = 3 }").id


def test_a_script_that_is_not_there_is_told(drawer: Drawer) -> None:
    orders = drawer.read(MINE + "hyper = { lr = 1 }")
    assert any("there is no train.py in" in note for note in orders.notes)


def test_many_jobs_compile_one_plan(drawer: Drawer, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_plan = JobBuilder.compile

    def counting(builder: JobBuilder, recipe: Any, args: Any) -> Any:
        compiled.append(recipe.name)
        return compile_plan(builder, recipe, args)

    monkeypatch.setattr(JobBuilder, "compile", counting)
    orders = drawer.read(SUM + 'sweep = { plus = "range:200" }')
    assert (len(orders.jobs), len(compiled)) == (200, 1)


def test_a_submission_carries_who_and_from_where(drawer: Drawer) -> None:
    said = drawer.read(SUM).submission(key="k", submitter="me@here", dry_run=True)
    assert (said.key, said.submitter, said.dry_run) == ("k", "me@here", True)
    assert said.source == str(drawer.folder / "m.toml")
    assert type(said).model_validate_json(said.model_dump_json()).jobs[0].id == said.jobs[0].id


def test_each_manifest_is_read_with_the_code_as_it_is_then(drawer: Drawer) -> None:
    text = '[[jobs]]\nname = "a"\nrecipe = "test/sum"\n'
    before = drawer.one(text).code
    # As a client's would be that has read this one before its cookbook was edited.
    for module, known in drawer.code._known.items():
        drawer.code._known[module] = changed(known, code={**known.code, OWN: "an earlier text"})
    assert drawer.one(text).code == before


def test_data_at_a_path_is_part_of_the_id_and_no_variable(drawer: Drawer) -> None:
    (drawer.folder / "x.py").write_text("")
    (drawer.folder / "corpus").mkdir()
    (drawer.folder / "corpus" / "a").write_text("one")
    (drawer.folder / ".stokerignore").write_text("corpus/\n")
    plain = MINE + "hyper = { lr = 1 }\n"
    first = drawer.one(plain + 'data = { "data/x" = "corpus" }')
    assert [one.where for one in first.inputs] == ["at:data/x"]
    assert first.identity["(data)"].keys() == {"data/x"}
    assert is_honest(first)
    assert identity_fault(first) == ""
    same = drawer.one(plain + 'data = { "./data//x/" = "corpus" }')
    assert same.id == first.id
    assert drawer.one(plain + 'data = { "data/y" = "corpus" }').id != first.id
    (drawer.folder / "corpus" / "a").write_text("two")
    assert drawer.one(plain + 'data = { "data/x" = "corpus" }').id != first.id


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ('{ "../x" = "corpus" }', "'../x' is not a variable's name, or a path below the working folder with a /"),
        ('{ "/x" = "corpus" }', "'/x' is not a variable's name"),
        ('{ "a-b" = "corpus" }', "'a-b' is not a variable's name"),
        ('{ "./x.py" = "corpus" }', "./x.py would replace x.py"),
        ('{ "./corpus" = "other" }', "./corpus would replace corpus/a"),
        ('{ "a/b" = "corpus", "./a/b" = "other" }', "this path is given twice"),
    ],
)
def test_data_at_a_path_that_can_not_be_is_refused(drawer: Drawer, data: str, fault: str) -> None:
    (drawer.folder / "x.py").write_text("")
    for name in ("corpus", "other"):
        (drawer.folder / name).mkdir()
        (drawer.folder / name / "a").write_text(name)
    (found,) = drawer.faults(MINE + f"hyper = {{ lr = 1 }}\ndata = {data}")
    assert fault in found
    assert "jobs[0].data" in found


def test_data_at_a_path_needs_a_copy_of_the_folder(drawer: Drawer) -> None:
    (drawer.folder / "corpus").mkdir()
    (found,) = drawer.faults(MINE + 'hyper = { lr = 1 }\ncode = "in-place"\ndata = { "a/b" = "corpus" }')
    assert "--in-place makes no copy of the folder" in found


@pytest.mark.parametrize(
    ("file", "note"),
    [
        ("uv.lock", 'uv.lock lists packages that machines do not install: env = "uv.lock" installs them on each'),
        ("poetry.lock", "poetry.lock can't be installed on machines: run poetry export"),
    ],
)
def test_an_environment_that_is_not_used_is_offered(drawer: Drawer, file: str, note: str) -> None:
    (drawer.folder / file).write_text("")
    (drawer.folder / "x.py").write_text("")
    plain = MINE + "hyper = { lr = 1 }\n"
    assert any(one.startswith(note) for one in drawer.read(plain).notes)
    assert not any(file in one for one in drawer.read(plain + 'python = "3.11"\n').notes)
    assert not any(file in one for one in drawer.read(plain.replace("python", "sh")).notes)
