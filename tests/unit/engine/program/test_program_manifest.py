from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import Needs, Stage
from stoker.cookbooks.command.cookbook import OpenProgramArgs, run
from stoker.engine.runners.program.program_end import frameworks_of
from tests.unit.engine.lab import Lab, plan_of
from tests.unit.engine.stages import NumberArgs, number, process_number
from tests.unit.engine.together_stages import CountArgs, count


def test_frameworks_are_read_off_an_environment_without_starting_it(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in (
        "torch-2.13.0.dist-info",
        "numpy-2.1.0.dist-info",
        "torchx-0.7.dist-info",
        "torch",
        "requests-2.0.dist-info",
    ):
        (packages / name).mkdir(parents=True)
    assert frameworks_of(str(tmp_path / "bin" / "python")) == {"numpy": "2.1.0", "torch": "2.13.0"}


def test_an_interpreter_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert frameworks_of(str(tmp_path / "nowhere" / "bin" / "python")) == {}
    assert frameworks_of("") == {}


@pytest.mark.parametrize(
    ("stage", "args"),
    [
        (number, NumberArgs()),
        (process_number, NumberArgs()),
        (count, CountArgs(member="one")),
        (run, OpenProgramArgs(argv=("true",), folder="/")),
    ],
)
def test_every_result_says_with_which_frameworks_driver_and_devices_it_was_made(
    lab: Lab, stage: Stage, args: Any
) -> None:
    ran = lab.run(plan_of(stage, args, id="made", needs=Needs(gpu=1)))
    (product,) = ran["made"].products
    manifest = product.record.body["manifest"]
    ours = {"frameworks", "packages", "driver", "devices", "memory_bytes", "attempt", "checkpoint"}
    assert set(manifest) == (ours | {"argv", "folder"} if stage.is_program else ours)
    assert manifest["devices"] == ["a"]
    if not stage.is_program:
        assert manifest["frameworks"] == frameworks_of(sys.executable) != {}
