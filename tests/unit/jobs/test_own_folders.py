"""Folders that trials write to."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.core.job import JobSpec
from stoker.engine.args import ArgsSchema, arg
from stoker.jobs.builder import with_own_folders


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Of a recipe that writes to a folder, and reads one."""

    kept: str | None = arg(None, help="written to", runtime=True, each=True)
    read: str = arg("", help="read")


def of(*trials: tuple[str, str | None]) -> list[str | None]:
    specs = [
        JobSpec(id="", name="job", recipe="test/job", label=label, args={"kept": kept, "read": "data"})
        for label, kept in trials
    ]
    made = with_own_folders(ArgsSchema(Args), specs)
    assert [spec.args["read"] for spec in made] == ["data"] * len(trials)
    return [spec.args["kept"] for spec in made]


def test_trials_that_name_one_folder_get_one_below_it_each() -> None:
    assert of(("rank=4", "kept"), ("rank=8", "kept")) == ["kept/rank=4", "kept/rank=8"]


def test_a_folder_that_one_trial_names_is_its_own() -> None:
    assert of(("", "kept")) == ["kept"]
    assert of(("a", "here"), ("b", "there"), ("c", None), ("d", None)) == ["here", "there", None, None]
