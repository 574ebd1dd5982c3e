from __future__ import annotations

import os
from pathlib import Path

from stoker.core.jsontext import loads
from stoker.store.places import list_quarantine, set_aside


def aside(tmp_path: Path, path: Path, *, seen: os.stat_result | None = None) -> str:
    return set_aside(str(path), str(tmp_path / "quarantine"), reason="it is bad", now_s=1_700_000_000.5, seen=seen)


def test_a_damaged_file_is_moved_with_its_reason_beside_it(tmp_path):
    (tmp_path / "bad").write_bytes(b"evidence")
    target = aside(tmp_path, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
    assert Path(target).read_bytes() == b"evidence"
    reason = loads(Path(f"{target}.reason.json").read_bytes())
    assert reason == {"path": str(tmp_path / "bad"), "reason": "it is bad", "at": 1_700_000_000.5}


def test_evidence_of_one_name_is_never_overwritten(tmp_path):
    targets = set()
    for number in range(3):
        (tmp_path / "bad").write_bytes(b"%d" % number)
        targets.add(aside(tmp_path, tmp_path / "bad"))
    assert sorted(Path(target).read_bytes() for target in targets) == [b"0", b"1", b"2"]


def test_what_vanished_leaves_neither_evidence_nor_reason(tmp_path):
    assert aside(tmp_path, tmp_path / "nothing") == ""
    assert os.listdir(tmp_path / "quarantine") == []


def test_a_file_that_took_the_place_of_the_one_seen_stays(tmp_path):
    (tmp_path / "bad").write_bytes(b"bad")
    seen = (tmp_path / "bad").lstat()
    (tmp_path / "good").write_bytes(b"good")
    os.rename(tmp_path / "good", tmp_path / "bad")
    assert aside(tmp_path, tmp_path / "bad", seen=seen) == ""
    assert (tmp_path / "bad").read_bytes() == b"good"


def test_a_file_that_takes_its_place_in_the_very_last_moment_is_put_back(tmp_path, monkeypatch):
    (tmp_path / "bad").write_bytes(b"bad")
    seen = (tmp_path / "bad").lstat()
    rename = os.rename

    def slip_in(src: str, dst: str) -> None:
        (tmp_path / "good").write_bytes(b"good")
        rename(tmp_path / "good", tmp_path / "bad")
        rename(src, dst)

    monkeypatch.setattr(os, "rename", slip_in)
    assert aside(tmp_path, tmp_path / "bad", seen=seen) == ""
    assert (tmp_path / "bad").read_bytes() == b"good"
    assert os.listdir(tmp_path / "quarantine") == []


def test_a_quarantine_that_can_not_be_made_is_no_error(tmp_path):
    (tmp_path / "quarantine").write_bytes(b"a file")
    (tmp_path / "bad").write_bytes(b"bad")
    assert aside(tmp_path, tmp_path / "bad") == ""
    assert (tmp_path / "bad").read_bytes() == b"bad"


def test_what_was_set_aside_is_listed_the_oldest_first_with_its_reason_and_size(tmp_path):
    quarantine = str(tmp_path / "quarantine")
    assert list_quarantine(quarantine) == []
    for name, at_s in (("b", 200.0), ("a", 300.0), ("c", 100.0)):
        (tmp_path / name).write_bytes(name.encode() * 7)
        set_aside(str(tmp_path / name), quarantine, reason=f"{name} is bad", now_s=at_s)
    listed = list_quarantine(quarantine)
    assert [(one.reason, one.at_s, one.size_bytes) for one in listed] == [
        ("c is bad", 100.0, 7), ("b is bad", 200.0, 7), ("a is bad", 300.0, 7)
    ]  # fmt: skip
    assert {name for one in listed for name in map(os.path.basename, one.paths)} == set(os.listdir(quarantine))


def test_what_lies_in_quarantine_without_a_readable_reason_is_listed_all_the_same(tmp_path):
    quarantine = tmp_path / "quarantine"
    (quarantine / "folder").mkdir(parents=True)
    (quarantine / "folder" / "x").write_bytes(b"123")
    (quarantine / "folder.reason.json").write_bytes(b"torn")
    (one,) = list_quarantine(str(quarantine))
    assert (one.reason, one.size_bytes) == ("reason unknown", 3)
    assert one.at_s > 0
