"""Jobs that share a base: what each asks of a machine, from what its recipe says of its arguments."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config.manifest_file import JobEntry
from stoker.cookbooks.language.recipes import lora
from stoker.core.device import GIB, Needs
from stoker.core.errors import BadInput, InvalidArgs
from stoker.core.frozen import changed
from stoker.core.job import InputKind, JobSpec
from stoker.core.leases import AttemptToken
from stoker.core.machine import DevicePreference
from stoker.devices.admission import MachineMemory
from stoker.engine.catalogue import Catalogue, CookbookSource
from stoker.engine.code_identity import CodeIdentity
from stoker.engine.stage import SharedBase
from stoker.jobs.builder import JobBuild, JobBuilder
from stoker.jobs.pack.attempt_inputs import with_inputs
from stoker.jobs.pack.code_tree import PreparedSubmission
from stoker.jobs.request import DataPlaces, FoundRepository, JobRequest
from stoker.jobs.requirements import PlanShapes, required_of_entry, required_of_needs
from stoker.jobs.submission import prepare
from stoker.protocol.job_checks import identity_fault
from stoker.worker.assignment import Assignment
from stoker.worker.attempt_child import build_assignment, check_found
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.test_submitting_typed import orders

SHARED = SharedBase(
    share_key="3f2a", base_bytes=4 * GIB, member_bytes=GIB, base_ram_bytes=2 * GIB, member_ram_bytes=GIB // 2
)
LARGE = changed(SHARED, base_ram_bytes=28 * GIB)


def test_it_prefers_a_device_and_shares_it_within_what_base_and_member_take() -> None:
    wants = required_of_needs(Needs(), SHARED)
    assert (wants.wish, wants.may_share, wants.device_count) == (DevicePreference.PREFER, True, 1)
    assert (wants.base, wants.base_bytes, wants.vram_bytes) == ("3f2a", 4 * GIB, 5 * GIB)
    assert (wants.base_ram_bytes, wants.ram_bytes) == (2 * GIB, 5 * GIB // 2)


def test_what_the_submitting_machine_would_run_it_on_is_no_requirement() -> None:
    here = Needs(gpu=1, vram_gib=9, shares=True, memory_gib=50)
    assert required_of_needs(here, SHARED) == required_of_needs(Needs(memory_gib=3), SHARED)


@pytest.mark.parametrize(
    ("gpus", "shared", "wish", "ram_gib"),
    [
        (0, SHARED, DevicePreference.NEVER, 2.5),
        (0, LARGE, DevicePreference.NEVER, 28.5),
        (1, SHARED, DevicePreference.REQUIRE, 4.25),
    ],
    ids=["on the CPU", "a large one on the CPU", "on a device"],
)
def test_its_gpus_decide_where_it_may_run(
    gpus: int, shared: SharedBase, wish: DevicePreference, ram_gib: float
) -> None:
    wants = required_of_needs(Needs(), shared, gpus)
    assert (wants.wish, wants.ram_bytes) == (wish, int(ram_gib * GIB))
    assert wants.may_share is (wish is not DevicePreference.NEVER)
    assert wants.base == "3f2a"


def test_a_base_too_large_for_a_cpu_by_the_way_needs_a_device_and_little_memory_of_its_machine() -> None:
    wants = required_of_needs(Needs(), LARGE)
    assert (wants.wish, wants.ram_bytes, wants.base_ram_bytes) == (DevicePreference.REQUIRE, 17 * GIB // 4, 4 * GIB)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"require_cuda": True}, {"wish": DevicePreference.REQUIRE, "vram_bytes": 5 * GIB}),
        ({"min_vram_gib": 9.0}, {"wish": DevicePreference.PREFER, "vram_bytes": 9 * GIB, "base_bytes": 4 * GIB}),
        ({"shares": False}, {"may_share": False, "vram_bytes": 5 * GIB}),
        ({"base": "mine", "base_gib": 3.0}, {"base": "mine", "base_bytes": 3 * GIB}),
        ({"min_ram_gib": 1.0}, {"ram_bytes": GIB, "base_ram_bytes": GIB}),
        ({"gpus": 0}, {"wish": DevicePreference.NEVER, "vram_bytes": 0, "may_share": False}),
    ],
    ids=str,
)
def test_what_a_manifest_says_wins(said: dict[str, Any], expected: dict[str, Any]) -> None:
    entry = JobEntry(name="a", recipe="r", **said)
    wants = required_of_entry(entry, {"name", "recipe", *said}, Needs(), SHARED)
    assert {name: getattr(wants, name) for name in expected} == expected


def test_jobs_of_one_sweep_share_a_word_and_each_asks_for_its_own_part(office: Office) -> None:
    (office.folder / "base.bin").write_text("weights")
    small, large, alone = orders(office, "base=base.bin", "rank=8,64,1", target="test/tuned").jobs
    assert small.requirements.base == large.requirements.base != ""
    assert (small.requirements.vram_bytes, large.requirements.vram_bytes) == (5 * GIB, 12 * GIB)
    assert (alone.requirements.base, alone.requirements.may_share) == ("", False)
    assert [one.where for one in small.inputs] == ["arg:base"]


def test_jobs_of_a_manifest_share_as_those_that_were_typed(office: Office) -> None:
    (office.folder / "base.bin").write_text("weights")
    manifest = office.folder / "m.toml"
    job = '[[jobs]]\nname = "{}"\nrecipe = "test/tuned"\nhyper = {{ base = "base.bin", rank = {} }}\n'
    manifest.write_text(job.format("a", 8) + job.format("b", 16))
    first, second = _prepared(office, JobRequest(target=str(manifest), is_manifest=True)).jobs
    (typed,) = orders(office, "base=base.bin", "rank=16", target="test/tuned").jobs
    assert second.requirements == typed.requirements
    assert (first.requirements.base, first.requirements.vram_bytes) == (typed.requirements.base, 5 * GIB)


def _assignment(order: JobSpec, devices: list[str], run_as: dict[str, Any] | None = None) -> Assignment:
    return Assignment(
        spec=order,
        token=AttemptToken(job=order.id, attempt=1, epoch=1, generation=1),
        folder="",
        devices=devices,
        is_shared=True,
        vram_bytes=GIB,
        run="run",
        lease_path="",
        run_as=run_as or {},
    )


@pytest.mark.parametrize("devices", [[], ["GPU-1"]], ids=["on the CPU", "on a device"])
def test_the_devices_of_a_grant_reach_the_recipe(office: Office, devices: list[str]) -> None:
    (office.folder / "base.bin").write_text("weights")
    (order,) = orders(office, "base=base.bin", target="test/tuned").jobs
    made = build_assignment(office.builder, _assignment(order, devices))
    assert made.trials[0].spec.args["gpus"] == len(devices)


@pytest.mark.parametrize("run_as", [{}, {"name": "job", "uid": 60000, "gid": 60000, "home": ""}], ids=["us", "others"])
def test_whoever_wants_a_job_that_runs_apart_does_not_say_where_we_write(
    office: Office, run_as: dict[str, Any]
) -> None:
    (office.folder / "base.bin").write_text("weights")
    (order,) = orders(office, "base=base.bin", "checkpoints=/etc", target="test/tuned").jobs
    made = build_assignment(office.builder, _assignment(order, [], run_as))
    assert made.trials[0].spec.args["checkpoints"] == (None if run_as else "/etc")


def _reading(office: Office, **hyper: str) -> JobSpec:
    """Order what a manifest says, whose paths are still as they were written."""
    for name in ("org/name", "rows.txt", "more.txt"):
        (office.folder / name).parent.mkdir(exist_ok=True)
        (office.folder / name).write_text("1")
    manifest = office.folder / "m.toml"
    said = ", ".join(f'{name} = "{text}"' for name, text in {"data": "rows.txt", **hyper}.items())
    manifest.write_text(f'[[jobs]]\nname = "a"\nrecipe = "test/read"\nhyper = {{ {said} }}\n')
    (order,) = _prepared(office, JobRequest(target=str(manifest), is_manifest=True)).jobs
    assert identity_fault(order) == ""
    return order


def _prepared(office: Office, request: JobRequest) -> PreparedSubmission:
    return prepare(request, builder=office.builder, code=CodeIdentity(str(office.folder / "code.json")))


def _here(office: Office, order: JobSpec) -> JobBuild:
    return build_assignment(office.builder, _assignment(order, []))


@pytest.mark.parametrize("title", ["org/name", "./org", ".", ".."])
def test_a_text_that_is_no_path_runs_as_it_was_written_though_there_is_a_file_of_its_name(
    office: Office, title: str
) -> None:
    order = _reading(office, title=title)
    assert order.args["title"] == order.identity["title"] == title
    (typed,) = orders(office, "data=rows.txt", f"title={title}", target="test/read").jobs
    assert typed.args["title"] == title
    assert _here(office, order).trials[0].spec.args["title"] == title


def test_a_path_that_no_stage_reads_runs_as_a_whole_one_and_is_known_as_it_was_written(office: Office) -> None:
    order = _reading(office, maybe="org/name")
    assert order.identity["maybe"] == "org/name"
    assert _here(office, order).trials[0].spec.args["maybe"] == str(office.folder / "org" / "name")


def test_a_path_of_dots_alone_is_known_by_its_content(office: Office) -> None:
    order = _reading(office, maybe="org/../org/.")
    assert order.identity["maybe"] == "org/../org/."
    order = _reading(office, maybe="org/..")
    assert order.identity["maybe"]["content"].startswith("tree:")


def test_a_job_does_not_run_with_a_path_in_the_place_of_a_text_of_its_id(office: Office) -> None:
    order = _reading(office, title="org/name")
    forged = changed(order, args={**order.args, "title": "/tmp/evil/org/name"})
    # Without the recipe, it may be a path that was made whole.
    assert identity_fault(forged) == ""
    with pytest.raises(BadInput, match="argument title is not 'org/name', the value in its id"):
        _here(office, forged)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """A hub with one repository of two files, of which a cache may have some."""

    def __init__(self, office: Office) -> None:
        self.snapshot = office.folder / "cache" / COMMIT
        self.snapshot.mkdir(parents=True)
        self.asked: list[str] = []

    def builder(self, office: Office) -> JobBuilder:
        return changed(office.builder, data=DataPlaces(find_repository=self.find, find_file=self.find_file))

    def find(self, text: str) -> FoundRepository:
        self.asked.append(text)
        kind = "datasets/" if text.startswith("datasets/") else ""
        return FoundRepository(repo=f"{kind}org/name", commit=COMMIT, files=2, size_bytes=1000)

    def find_file(self, repo: str, name: str) -> str:
        self.asked.append(f"{repo} {name}")
        (self.snapshot / name).write_text("{}")
        return str(self.snapshot)


def _submitted(office: Office, hub: Hub, *words: str) -> tuple[JobSpec, ...]:
    code = CodeIdentity(str(office.folder / "code.json"))
    return prepare(JobRequest(target="test/tuned", overrides=words), builder=hub.builder(office), code=code).jobs


def test_a_base_of_the_hub_is_brought_by_each_machine_and_only_its_small_file_by_us(office: Office) -> None:
    hub = Hub(office)
    first, second = _submitted(office, hub, "base=org/name@main", "rank=8,16")
    assert hub.asked == ["org/name@main", f"org/name@{COMMIT} config.json"]
    (body,) = first.inputs
    assert (body.where, body.kind, body.repo) == ("arg:base", InputKind.REPO, f"org/name@{COMMIT}")
    assert first.identity["base"] == {"content": f"repo:org/name@{COMMIT}"}
    assert (first.args["base"], first.args["base_name"]) == ("org/name@main", "org/name")
    assert first.requirements.base == second.requirements.base
    assert (first.requirements.vram_bytes, second.requirements.vram_bytes) == (5 * GIB, 6 * GIB)


def test_a_base_of_which_one_file_was_seen_has_a_word_of_its_own(office: Office) -> None:
    hub = Hub(office)
    (unseen,) = _submitted(office, hub, "base=org/name")
    (hub.snapshot / "weights").write_text("1")
    (seen,) = _submitted(office, hub, "base=org/name")
    digest = office.builder.digest(str(hub.snapshot))
    assert seen.requirements.base == digest[-8:] != unseen.requirements.base
    assert seen.id == unseen.id


def test_what_else_is_wrong_with_a_job_is_told_before_its_base_is_anywhere(office: Office) -> None:
    with pytest.raises(InvalidArgs, match="more than a thousand"):
        _submitted(office, Hub(office), "base=org/name", "rank=1001")


def test_a_repository_that_nobody_knows_is_told_so(office: Office) -> None:
    with pytest.raises(InvalidArgs, match="no file or folder org/name here, and as a repository of the hub"):
        orders(office, "base=org/name", target="test/tuned")


def test_what_this_machine_has_no_room_for_may_be_submitted(office: Office) -> None:
    memory = MachineMemory(total_bytes=GIB // 4, available_bytes=GIB // 4)
    builder = changed(office.builder, surroundings=changed(office.builder.surroundings, memory=lambda: memory))
    values, _ = lora.args.check({}, owner="")
    with pytest.raises(InvalidArgs):
        builder.compile(lora, values)
    assert PlanShapes(builder, CodeIdentity(str(office.folder / "code.json"))).of(lora, values, ()).faults == ()


def _language(office: Office) -> Catalogue:
    source = CookbookSource(name="language", value="stoker.cookbooks.language:COOKBOOK")
    return Catalogue(str(office.folder / "language.json"), [source])


def test_sources_in_a_list_and_folders_go_where_the_job_goes(office: Office) -> None:
    for name in ("set/train.jsonl", "one.jsonl"):
        (office.folder / name).parent.mkdir(exist_ok=True)
        (office.folder / name).write_text('{"text": "x"}\n')
    catalogue = _language(office)
    code = CodeIdentity(str(office.folder / "code.json"))

    def submitted(data: str) -> JobSpec:
        request = JobRequest(target="language/lora", overrides=(data, "gpus=0"))
        (job,) = prepare(request, builder=changed(office.builder, catalogue=catalogue), code=code).jobs
        assert identity_fault(job) == ""
        return job

    job = submitted("data=[sums,{path: ./set, weight: 2},./one.jsonl]")
    places = {one.where: (one.kind, one.path) for one in job.inputs}
    assert places == {
        "arg:data.0": (InputKind.TREE, str(office.folder / "set")),
        "arg:data.1": (InputKind.FILE, str(office.folder / "one.jsonl")),
    }
    assert "content" in job.identity["data"][2]
    there = with_inputs(lora, job.args, {"arg:data.0": "/there/set", "arg:data.1": "/there/one"}, job.identity)["data"]
    assert (there[0], there[1]["path"], there[2]) == ("sums", "/there/set", "/there/one")
    assert [one.where for one in submitted("data=./set").inputs] == ["arg:data"]


@pytest.mark.parametrize("is_here", [False, True])
def test_data_sets_of_the_hub_in_a_list_are_fetched_by_each_machine(office: Office, is_here: bool) -> None:
    (office.folder / "one.jsonl").write_text('{"text": "x"}\n')
    hub = Hub(office)
    builder = changed(hub.builder(office), catalogue=_language(office))
    if is_here:
        for name in ("README.md", "train.jsonl"):
            (hub.snapshot / name).write_text('{"text": "y"}\n' if name == "train.jsonl" else "")
    data = "data=[./one.jsonl,org/texts,{path: org/texts@v1, weight: 2},sums]"
    request = JobRequest(target="language/lora", overrides=(data, "gpus=0"))
    code = CodeIdentity(str(office.folder / "code.json"))
    (job,) = prepare(request, builder=builder, code=code).jobs
    assert identity_fault(job) == ""
    repository = f"datasets/org/name@{COMMIT}"
    assert [(one.where, one.kind, one.repo) for one in job.inputs] == [
        ("arg:data.0", InputKind.FILE, ""),
        ("arg:data.1", InputKind.REPO, repository),
        ("arg:data.2", InputKind.REPO, repository),
    ]
    content = {"content": f"repo:{repository}"}
    first, second, third, last = job.identity["data"]
    assert first["content"].startswith("sha256:")
    assert (second, third["path"], third["weight"], last) == (content, content, 2, "sums")
    assert job.args["data"][1] == "org/texts"
    paths = {f"arg:data.{number}": f"/there/{number}" for number in range(3)}
    there = with_inputs(lora, job.args, paths, job.identity)["data"]
    assert (there[0], there[1], there[2]["path"], there[3]) == ("/there/0", "/there/1", "/there/2", "sums")
    other = changed(job, inputs=(job.inputs[0], changed(job.inputs[1], repo=f"org/other@{COMMIT}"), job.inputs[2]))
    assert identity_fault(other) == "input arg:data differs from the content in the id"


def test_an_argument_beyond_its_default_is_part_of_the_id(office: Office) -> None:
    values, _ = lora.args.check({"eval_split": "x"}, owner="")
    job = changed(orders(office, "plus=1", target="test/sum").jobs[0], args=values, identity={})
    with pytest.raises(BadInput, match="argument eval_split is no part of the job's id"):
        check_found(lora, job)
