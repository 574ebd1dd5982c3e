"""Inputs in the place of a job's own paths."""

from __future__ import annotations

from stoker.cookbooks.command import COOKBOOK
from stoker.jobs.pack.attempt_inputs import places_of, with_inputs

COMMAND = next(recipe for recipe in COOKBOOK.recipes if recipe.name == "command")
ARGS = {"argv": ("python", "a.py"), "inputs": ("/desk/a", "/desk/b"), "data": {"DATA": "/desk/set"}, "python": ""}


def test_variables_and_declared_inputs_get_this_machines_paths():
    made = with_inputs(COMMAND, ARGS, {"env:DATA": "/lab/set", "env:MORE": "/lab/more", "arg:inputs.1": "/lab/b"}, {})
    assert made["data"] == {"DATA": "/lab/set", "MORE": "/lab/more"}
    assert list(made["inputs"]) == ["/desk/a", "/lab/b"]
    assert made["argv"] == ARGS["argv"]
    assert ARGS["data"] == {"DATA": "/desk/set"}


def test_places_are_named_as_they_are_put_in():
    assert dict(places_of(COMMAND, {"inputs": ("/desk/a", "/desk/b"), "python": "/usr/bin/python3"})) == {
        "arg:inputs.0": "/desk/a",
        "arg:inputs.1": "/desk/b",
    }


def test_a_plain_argument_is_replaced_as_a_whole():
    assert with_inputs(COMMAND, {"python": "a"}, {"arg:python": "/lab/python"}, {})["python"] == "/lab/python"
