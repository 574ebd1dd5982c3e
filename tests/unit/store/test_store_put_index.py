from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.errors import LocalFile, StokerError
from stoker.store.put import add_row, read_index
from tests.unit.store.real_stores import make_store


@pytest.fixture
def places(tmp_path):
    return make_store(tmp_path / "store").places


def told(places):
    return [row.fields.get("name") if not row.damage else row.damage for row in read_index(places)]


def test_rows_come_back_in_the_order_in_which_they_were_written(places):
    assert told(places) == []
    for name in ("a", 'quo"te', "ünï", "\udcff", "two\nlines", "$tag"):
        add_row(places, {"did": "put", "name": name, "bytes": 3, "at_s": 0.1})
    assert told(places) == ["a", 'quo"te', "ünï", "\udcff", "two\nlines", "$tag"]
    assert len(Path(places.index).read_bytes().splitlines()) == 6


def test_a_torn_last_line_is_passed_over_and_the_next_row_stands_on_its_own(places):
    add_row(places, {"name": "a"})
    whole = Path(places.index).read_bytes()
    for cut in range(1, len(whole) - 1):
        Path(places.index).write_bytes(whole + whole[:cut])
        assert told(places) == ["a", "the line has no end"]
        add_row(places, {"name": "b"})
        first, torn, last = told(places)
        assert (first, last) == ("a", "b")
        assert torn not in ("a", "b")


def test_an_edited_row_is_told_apart(places):
    for name in ("a", "b", "c"):
        add_row(places, {"name": name})
    path = Path(places.index)
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"x"'))
    assert told(places) == ["a", "the line does not match its check: it was edited, or is not whole", "c"]


@pytest.mark.parametrize(
    "line", [b"[]\n", b"3\n", b"{}\n", b'{"sealed":"put/1","check":3}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"]
)
def test_a_line_of_something_else_is_told_apart(places, line):
    add_row(places, {"name": "a"})
    with open(places.index, "ab") as file:
        file.write(line)
    add_row(places, {"name": "b"})
    first, odd, last = told(places)
    assert (first, last) == ("a", "b")
    assert odd


def test_nothing_is_written_through_a_link_and_something_else_in_its_place_is_an_error(places, tmp_path):
    target = tmp_path / "mine"
    target.write_bytes(b"mine")
    os.symlink(target, places.index)
    with pytest.raises(LocalFile):
        add_row(places, {"name": "a"})
    assert target.read_bytes() == b"mine"
    os.unlink(places.index)
    os.mkdir(places.index)
    with pytest.raises(StokerError):
        add_row(places, {"name": "a"})
    assert [bool(row.damage) for row in read_index(places)] == [True]
