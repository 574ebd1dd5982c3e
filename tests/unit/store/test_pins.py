from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.errors import CorruptBytes
from stoker.store.refs import Pin, list_pins, pin, refuse_if_damaged, unpin
from tests.unit.store.real_stores import key_of, make_store

NAMES = ["a/b", "a_b", "a%2Fb", ".hidden", "hidden", "größe", "with space", "..", "x" * 200]


@pytest.fixture
def places(tmp_path):
    return make_store(tmp_path).places


def test_pins_of_similar_names_are_different_pins(places):
    for name in NAMES:
        pin(places, name, (key_of(name),))
    assert {one.name: one.keys for one in list_pins(places)} == {name: (key_of(name),) for name in NAMES}
    assert len(os.listdir(places.pins)) == len(NAMES)
    for name in NAMES:
        assert unpin(places, name)
        assert not unpin(places, name)
    assert list_pins(places) == []


def test_a_pin_of_the_same_name_replaces_the_old_one(places):
    pin(places, "a", (key_of(1),))
    pin(places, "a", (key_of(2), key_of(3)))
    assert list_pins(places) == [Pin(name="a", keys=(key_of(2), key_of(3)))]


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:40]),
        lambda path: path.write_bytes(b"\xff" + path.read_bytes()),
        lambda path: path.write_bytes(b"[1]"),
        lambda path: path.write_bytes(b'{"keys": 7}'),
        lambda path: path.write_bytes(b'{"keys": "abc"}'),
        lambda path: path.write_bytes(b'{"keys": [7]}'),
        _make_folder,
    ],
)
def test_a_damaged_pin_is_listed_refuses_pruning_and_can_be_set_again_or_taken_away(places, damage):
    pin(places, "good", (key_of(1),))
    pin(places, "bad/one", (key_of(2),))
    damage(Path(places.pins, "bad%2Fone.json"))
    bad, good = list_pins(places)
    assert (good.keys, good.damage) == ((key_of(1),), "")
    assert (bad.name, bad.keys) == ("bad/one", ())
    assert bad.damage
    with pytest.raises(CorruptBytes, match="pin bad/one can't be read"):
        refuse_if_damaged(places)
    pin(places, "bad/one", (key_of(2),))
    refuse_if_damaged(places)
    damage(Path(places.pins, "bad%2Fone.json"))
    assert unpin(places, "bad/one")
    refuse_if_damaged(places)
    assert [one.name for one in list_pins(places)] == ["good"]


def test_no_folder_of_pins_is_no_pins(places):
    os.rmdir(places.pins)
    assert list_pins(places) == []
