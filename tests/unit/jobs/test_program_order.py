from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.core.device import Capacity
from stoker.engine.program import fill
from stoker.jobs.program import ProgramFiles, ProgramWords, flat, split

CAPACITY = Capacity(cpu=8, memory_bytes=2**34)


def words(*argv: str, folder: str = "/nowhere", at_once: int = 1) -> ProgramWords:
    return ProgramWords(argv=argv, folder=folder, capacity=CAPACITY, gpus=2, at_once=at_once)


def heard(argv: tuple[str, ...], params: dict[str, Any], **texts: str) -> list[str]:
    """What a program hears of its words."""
    made = words(*argv).args({}, params, texts, ProgramFiles("/nowhere"))
    return [fill(word, {"out": "/out", "scratch": "/scratch"}) for word in made["argv"]]


def test_a_parameter_is_put_in_as_it_was_typed_and_one_from_a_file_as_it_would_be() -> None:
    params = {"lr": 0.001, "n": 7, "on": True, "none": None, "text": "a b", "deep": {"er": 2.5}, "list": [1, 2]}
    argv = ("{lr}", "{n}", "{on}", "{none}", "{text}", "{deep.er}", "{list}")
    assert heard(argv, params, lr="1e-3", n="007") == ["1e-3", "007", "true", "null", "a b", "2.5", "[1,2]"]


def test_one_that_was_typed_empty_is_empty() -> None:
    assert heard(("<{x}>",), {"x": None}, x="") == ["<>"]


def test_the_result_folder_is_filled_in_at_the_start_and_nothing_that_was_filled_in_is_a_place() -> None:
    assert heard(("{out}/{x}", "{{out}}"), {"x": "{out}"}) == ["/out/{out}", "{out}"]


def test_places_that_nothing_fills_are_all_named_with_the_nearest_parameter() -> None:
    faults = words("tool", "{lrr}", "{lrr} {seed}", "{out}", "{{x}}", "${HOME}").faults(["lr", "depth"])
    assert [(fault.where, fault.hint) for fault in faults] == [
        ("{lrr}", "did you mean 'lr'?"),
        ("{seed}", "set seed=VALUE before --, or write {{seed}} for plain braces"),
    ]


def test_a_parameter_may_not_be_called_like_a_place_of_ours() -> None:
    assert [fault.where for fault in words("tool").faults(["out", "scratch"])] == ["out", "scratch"]


def test_parameters_that_no_place_takes_are_mentioned() -> None:
    program = words("tool", "{lr}", "${seed}")
    assert program.remarks(["lr", "seed"]) == []
    assert program.remarks(["lr", "depth", "depth", "wide"]) == [
        "no {…} of the program takes depth, wide: it can ask stoker_trainer or $STOKER_PARAMS"
    ]


def test_what_the_recipe_declares_is_its_own_and_the_rest_are_parameters(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    settings, params = split({"memory": "8G", "lr": 1}, {"memory", "outputs"})
    assert (settings, params) == ({"memory": "8G"}, {"lr": 1})
    made = words("python", "train.py", folder=str(tmp_path)).args(settings, params, {}, ProgramFiles(str(tmp_path)))
    assert made == {
        "memory": "8G",
        "argv": ("python", "train.py"),
        "params": {"lr": 1},
        "folder": str(tmp_path),
        "metrics": (),
        "code": {"train.py": str(tmp_path / "train.py")},
        "machine_gpus": 2,
        "machine_cpus": 8,
    }


@pytest.mark.parametrize(("at_once", "cpus"), [(1, 8), (3, 2), (100, 1)])
def test_programs_that_run_at_once_share_the_cores(at_once: int, cpus: int) -> None:
    assert words("tool", at_once=at_once).today({})["machine_cpus"] == cpus


def test_leaves_have_dotted_paths_and_an_empty_map_is_a_leaf() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": 2}, "e": {}}) == {"a.b.c": 1, "a.d": 2, "e": {}}


def test_sweeps_of_one_program_in_one_folder_are_a_family() -> None:
    assert words("a", "{x}").family() == words("a", "{x}").family()
    assert len({words("a").family(), words("b").family(), words("a", folder="/else").family()}) == 3


def test_a_parameter_that_is_spelt_nearly_like_a_setting_is_mentioned_unless_a_place_takes_it() -> None:
    settings = ["memory", "inputs", "outputs", "timeout", "silence", "env"]
    remarks = words("tool", "{lr}").remarks(["lr", "memmory", "input", "sentence", "time", "model.memory"], settings)
    assert remarks[:-1] == [
        "memmory is no setting of a program's run (did you mean 'memory'?)",
        "input is no setting of a program's run (did you mean 'inputs'?)",
    ]
    assert words("tool", "{memmory}").remarks(["memmory"], settings) == []
