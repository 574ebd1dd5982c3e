"""Folders that trials write to."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.engine.args import ArgsSchema, arg
from stoker.jobs.build_context import apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """Of a recipe that writes to a folder, and reads one."""

    kept: str | None = arg(None, help="written to", runtime=True, each=True)
    read: str = arg("", help="read")


def of(*trials: tuple[str, str | None]) -> list[str | None]:
    made = apart(ArgsSchema(Args), [(label, {"kept": kept, "read": "data"}) for label, kept in trials])
    assert [args["read"] for args in made] == ["data"] * len(trials)
    return [args["kept"] for args in made]


def test_trials_that_name_one_folder_get_one_below_it_each() -> None:
    assert of(("rank=4", "kept"), ("rank=8", "kept")) == ["kept/rank=4", "kept/rank=8"]


def test_a_folder_that_one_trial_names_is_its_own() -> None:
    assert of(("", "kept")) == ["kept"]
    assert of(("a", "here"), ("b", "there"), ("c", None), ("d", None)) == ["here", "there", None, None]
