from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.unit.host.real_systemd import run_beside_systemd


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> dict[str, Any]:
    """What every scene reports; they share one systemd, which takes longer to start than all of them."""
    folder = tmp_path_factory.mktemp("run")
    return json.loads(run_beside_systemd([sys.executable, "-m", "tests.unit.host.systemd_scenes"], folder))


def test_a_program_runs_in_a_unit_that_goes_when_its_box_is_closed(scenes):
    seen = scenes["a_program_runs_in_a_unit"]
    assert seen["ended"] == "exit status 0"
    assert seen["name"].startswith("stoker-Job_7-train.one.")
    assert seen["name"].endswith(".scope")
    assert f"/{seen['name']}/" in seen["group"]
    # It is still there when the program has ended: what it counted has to be read.
    assert seen["before"] == [seen["name"]]
    assert seen["after"] == []
    assert seen["was_out_of_memory"] is False


def test_the_environment_is_not_touched_on_the_way(scenes):
    assert scenes["a_program_sees_its_own_environment_only"] == ["PATH"]


def test_strays_are_inside_and_ended(scenes):
    seen = scenes["strays_are_ended"]
    assert len(seen["strays"]) == 4
    assert seen["members"] == seen["strays"]
    assert (seen["left"], seen["units"]) == ([], [])


def test_a_chain_of_processes_is_ended(scenes):
    assert scenes["a_chain_is_ended"] == {"left": [], "units": []}


def test_two_boxes_of_one_name_are_two_units(scenes):
    seen = scenes["two_boxes_of_one_name"]
    assert len(set(seen["names"])) == 2
    assert seen["left"] == [seen["two"]]


def test_a_limit_is_kept_or_refused_but_never_only_accepted(scenes):
    seen = scenes["a_limit_that_is_not_kept_is_refused"]
    assert seen["units"] == []
    if seen["why"]:
        assert "memory control" in seen["why"]
    else:
        assert (seen["signal"], seen["was_out_of_memory"]) == (9, True)


def test_choosing_it_by_name_says_what_is_missing(scenes):
    seen = scenes["choosing_it_by_name"]
    assert seen == {"mechanism": "systemd"} or ("memory control" in seen["why"] and seen["units"] == [])


def test_a_program_whose_unit_is_gone_never_runs(scenes):
    seen = scenes["a_program_whose_unit_is_gone_never_runs"]
    assert "AttachProcessesToUnit" in seen["why"]
    assert seen["came"] is False


def test_forked_work_runs_in_a_unit(scenes):
    seen = scenes["forked_work_runs_in_a_unit"]
    assert f"/{seen['name']}/" in seen["group"]


def test_an_owner_that_is_killed_leaves_neither_program_nor_unit(scenes):
    assert scenes["an_owner_that_is_killed_leaves_nothing"] == {"before": True, "units": []}


def test_the_next_box_ends_what_an_owner_and_its_keeper_left(scenes):
    assert scenes["the_next_box_ends_what_an_owner_and_its_keeper_left"] == {"before": True, "left": False}


def test_it_is_reached_over_a_bus_with_others_on_it_too(scenes):
    seen = scenes["over_a_bus_with_others_on_it"]
    if seen["why"]:
        pytest.skip(f"no bus here: {seen['why']}")
    assert seen["same"] is True
