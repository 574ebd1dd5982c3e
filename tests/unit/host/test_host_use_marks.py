"""Marks of processes beside what they use."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.core.frozen import changed
from stoker.core.jsontext import dumps
from stoker.host.identity import mine
from stoker.host.locks import living_marks


def marked(folder: Path, name: str, told: object) -> None:
    (folder / name).write_text(dumps(told))


def test_marks_of_living_processes_are_given_and_all_others_go(tmp_path: Path) -> None:
    here = mine()
    gone = changed(here, start_ticks=here.start_ticks + 1)
    marked(tmp_path, "living", here.to_dict())
    marked(tmp_path, "gone", gone.to_dict())
    marked(tmp_path, "strange", ["no", "process"])
    (tmp_path / "torn").write_bytes(b"{")
    assert living_marks(str(tmp_path)) == [here.to_dict()]
    assert os.listdir(tmp_path) == ["living"]


def test_what_a_mark_says_beside_its_process_is_given_too(tmp_path: Path) -> None:
    told = {"owner": mine().to_dict(), "names": ["a"]}
    marked(tmp_path, "run", told)
    assert living_marks(str(tmp_path), lambda found: found["owner"]) == [told]
    assert living_marks(str(tmp_path)) == []


def test_a_mark_that_is_just_being_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".half").write_bytes(b"{")
    assert living_marks(str(tmp_path)) == []
    assert os.listdir(tmp_path) == [".half"]


def test_where_nothing_was_ever_marked_there_is_none(tmp_path: Path) -> None:
    assert living_marks(str(tmp_path / "none")) == []
