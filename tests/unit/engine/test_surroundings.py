"""What recipes may know of the machine while plans are made."""

from __future__ import annotations

from stoker.engine.recipe import MachineContext, surrounded_by, surroundings


def test_a_recipe_knows_what_was_handed_in_and_only_while_its_plan_is_made():
    assert surroundings().hub_cache() == ""
    with surrounded_by(MachineContext(hub_cache=lambda: "/a")):
        with surrounded_by(MachineContext(hub_cache=lambda: "/b")):
            assert surroundings().hub_cache() == "/b"
        assert surroundings().hub_cache() == "/a"
    assert surroundings().hub_cache() == ""
