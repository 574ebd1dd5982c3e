"""From a command line to orders: the same words as `stoker run`, each trial a job; what a job asks of its machine."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from stoker.config.manifest_file import JobEntry
from stoker.cookbooks.command.cookbook import GpuBackend
from stoker.core.device import COMPUTE_BACKENDS, GIB, Backend, Needs
from stoker.core.errors import BadInput, InvalidArgs, InvalidInput
from stoker.core.machine import DevicePreference, Requirements
from stoker.engine.args import ArgsSchema
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs.manifest_checks import RecipeForm
from stoker.jobs.pack.code_tree import PreparedSubmission
from stoker.jobs.request import JobRequest
from stoker.jobs.requirements import required_of_entry, required_of_needs, required_of_program
from stoker.jobs.submission import prepare
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.cookbook import COOKBOOK
from tests.unit.jobs.test_submitting_manifest import is_honest


def orders(
    office: Office, *words: str, target: str = "", program: tuple[str, ...] = (), **more: Any
) -> PreparedSubmission:
    request = JobRequest(
        target=target,
        overrides=words,
        program=program,
        name=more.pop("name", ""),
        env=more.pop("env", {}),
        fields=more,
    )
    return prepare(request, builder=office.builder, code=CodeIdentity(str(office.folder / "code.json")))


def test_every_trial_is_a_job_with_the_id_that_it_has_here(office: Office) -> None:
    made = orders(office, "plus=1,2", "values=[3]", target="test/sum", priority=4, expected_s=90.0)
    here = office.order("test/sum", plus="1,2", values="[3]")
    assert [one.id for one in made.jobs] == [trial.spec.id for trial in here.trials]
    assert [(one.name, one.number, one.label, one.priority) for one in made.jobs] == [
        ("sum", 1, "plus=1", 4),
        ("sum", 2, "plus=2", 4),
    ]
    assert [one.expected_s for one in made.jobs] == [90.0, 90.0]
    assert all(map(is_honest, made.jobs))


def test_one_trial_has_no_number(office: Office) -> None:
    (one,) = orders(office, target="test/sum", name="mine").jobs
    assert (one.name, one.number, one.label, one.point) == ("mine", 0, "", {})


def test_a_programs_settings_become_what_it_asks_of_a_machine(office: Office) -> None:
    (office.folder / "train.py").write_text("print(1)")
    words = ("lr=1e-3,1e-4", "memory=8G", "vram=6G", "shares=true", "cpus=4", "timeout=2h")
    made = orders(office, *words, program=("python", "train.py", "--lr", "{lr}"))
    first, second = made.jobs
    assert (first.name, first.args["argv"][-1], second.args["argv"][-1]) == ("train", "1e-3", "1e-4")
    wants = first.requirements
    assert (wants.wish, wants.vram_bytes, wants.ram_bytes, wants.cores) == (
        DevicePreference.REQUIRE,
        6 * GIB,
        8 * GIB,
        4,
    )
    assert wants.may_share
    assert first.timeout_s == 7200.0
    assert first.code.keys() == {"train.py"}
    assert is_honest(first)


def test_the_same_program_in_a_manifest_and_on_a_command_line_is_one_job(office: Office) -> None:

    path = office.folder / "m.toml"
    path.write_text('[[jobs]]\nname = "x"\ncommand = "sh go.sh {n}"\nhyper = { n = 3 }')
    code = CodeIdentity(str(office.folder / "code.json"))
    (written,) = prepare(JobRequest(target=str(path), is_manifest=True), builder=office.builder, code=code).jobs
    (typed,) = orders(office, "n=3", program=("sh", "go.sh", "{n}")).jobs
    assert written.id == typed.id


def test_what_only_shows_when_a_program_is_compiled_is_refused(office: Office) -> None:
    with pytest.raises(InvalidArgs, match="shares"):
        orders(office, "shares=true", program=("true",))


def test_what_a_recipe_refuses_is_refused(office: Office) -> None:
    with pytest.raises(InvalidArgs, match="thirteen"):
        orders(office, "values=[13]", target="test/sum")
    with pytest.raises(BadInput, match="can't be a job's name"):
        orders(office, target="test/sum", name="a/b")


@pytest.mark.parametrize(
    ("args", "wish", "count"),
    [
        ({}, DevicePreference.PREFER, 1),
        ({"gpus": 0}, DevicePreference.NEVER, 1),
        ({"gpus": 2}, DevicePreference.REQUIRE, 2),
        ({"vram": "1G"}, DevicePreference.REQUIRE, 1),
    ],
    ids=str,
)
def test_a_program_gets_a_device_if_there_is_one_unless_it_says_more(
    args: dict[str, Any], wish: DevicePreference, count: int
) -> None:
    wants = required_of_program(args)
    assert (wants.wish, wants.device_count, wants.ram_bytes) == (wish, count, 0)


def test_a_program_may_name_the_backend_of_its_devices(office: Office) -> None:
    words = ("gpus=2", "gpu_backend=rocm")
    (named,) = orders(office, *words, program=("true",)).jobs
    (default,) = orders(office, "gpus=2", program=("true",)).jobs
    wants = named.requirements
    assert (wants.wish, wants.backend, wants.device_count) == (DevicePreference.REQUIRE, Backend.ROCM, 2)
    assert default.requirements.backend is Backend.CUDA
    # Neither the id nor the arguments change: earlier workers run both.
    assert (named.id, named.args) == (default.id, default.args)
    assert "gpu_backend" not in default.args


def test_a_backend_alone_requires_one_device() -> None:
    wants = required_of_program({"gpu_backend": "oneapi"})
    assert (wants.wish, wants.backend, wants.device_count) == (DevicePreference.REQUIRE, Backend.ONEAPI, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpu_backend=vulkan",), "gpu_backend: 'vulkan' is not one of cuda, rocm, metal, oneapi"),
        (("gpu_backend=rocm", "gpus=0"), "gpus=0 requests no GPU"),
    ],
)
def test_a_backend_without_devices_is_refused(office: Office, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        orders(office, *words, program=("true",))
    assert message in " ".join(map(str, caught.value.faults))


def test_every_backend_that_has_devices_can_be_named() -> None:
    assert get_args(GpuBackend) == COMPUTE_BACKENDS


def test_a_recipe_may_need_devices_of_one_backend() -> None:
    assert required_of_needs(Needs(gpu=1, gpu_backend="metal")).backend is Backend.METAL
    assert required_of_needs(Needs(gpu=1)).backend is Backend.CUDA


def test_the_backend_in_a_manifest_wins_over_that_of_a_recipe() -> None:
    entry = JobEntry(name="x", recipe="test/sum", gpu_backend=Backend.ROCM)
    wants = required_of_entry(entry, {"name", "recipe", "gpu_backend"}, Needs(gpu=3, gpu_backend="cuda"))
    assert (wants.wish, wants.backend, wants.device_count) == (DevicePreference.REQUIRE, Backend.ROCM, 3)


def test_a_recipes_needs_hold_where_nobody_says_more() -> None:
    needs = Needs(cpu=4, gpu=2, memory_gib=6, vram_gib=10, shares=True)
    wants = required_of_needs(needs)
    assert (wants.wish, wants.device_count, wants.cores) == (DevicePreference.REQUIRE, 2, 4)
    assert (wants.vram_bytes, wants.ram_bytes, wants.may_share) == (10 * GIB, 6 * GIB, True)
    assert required_of_needs(Needs()) == Requirements(ram_bytes=0)


def test_what_a_manifest_says_wins_over_what_a_recipe_needs() -> None:
    needs = Needs(cpu=4, gpu=2, memory_gib=6)
    entry = JobEntry(name="a", recipe="r", prefer_cuda=True, min_ram_gib=1.0)
    wants = required_of_entry(entry, {"name", "prefer_cuda", "min_ram_gib"}, needs)
    assert (wants.wish, wants.device_count, wants.ram_bytes, wants.cores) == (DevicePreference.PREFER, 1, GIB, 4)
    plain = required_of_entry(JobEntry(name="a", recipe="r"), {"name"}, needs)
    assert (plain.wish, plain.device_count, plain.ram_bytes) == (DevicePreference.REQUIRE, 2, 6 * GIB)


@pytest.mark.parametrize("recipe", COOKBOOK.recipes, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize(
    "hyper",
    [
        {},
        {"plus": 3},
        {"plus": "x", "values": [-1]},
        {"none": 1},
        {"values": 1, "factor": 2.0},
        {"data": "f", "more": ["g"]},
    ],
    ids=str,
)
def test_values_are_checked_as_a_recipes_own_schema_checks_them(recipe: Any, hyper: dict[str, Any]) -> None:
    schema: ArgsSchema = recipe.args
    values, faults = schema.check(hyper, owner="")
    filled, found = RecipeForm(recipe).filled(hyper)
    assert len(found) == len(faults)
    if not faults:
        assert filled == values


def test_a_file_of_an_environment_that_is_not_there_is_told_with_where_it_was_looked_for(office: Office) -> None:
    with pytest.raises(InvalidArgs, match=r"file not found: foo\.txt") as refused:
        orders(office, program=("true",), env={"": "foo.txt"})
    assert refused.value.hint.startswith(f"--env names a file in {office.builder.folder} or below it: uv.lock, ")
