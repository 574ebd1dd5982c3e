from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import JsonKind, Kind, TextKind, TreeKind
from stoker.core.digests import Digest, KindRef


class Plain(JsonKind):
    name = "plain"


class Newer(JsonKind):
    name = "plain"
    version = 2


class Note(TextKind):
    name = "note"


class Tree(TreeKind):
    name = "tree"


class Bare(Kind[Any]):
    name = "bare"


class Small(TreeKind):
    name = "small"

    @classmethod
    def validate(cls, path: Path) -> None:
        if not (path / "index").is_file():
            message = "it has no index"
            raise ValueError(message)


def test_a_kind_is_known_by_name_and_version() -> None:
    assert Plain.ref() == KindRef("plain", 1)
    assert str(Plain.ref()) == "plain@1"
    assert Newer.ref() != Plain.ref()


@pytest.mark.parametrize("value", [None, 1, -0.0, [1.5, "x"], {"a": {"b": []}}, {"$float": 1}, "ü"])
def test_json_comes_back_as_it_was_saved(tmp_path: Path, value: Any) -> None:
    Plain.save(value, tmp_path / "value.json")
    assert Plain.at(str(tmp_path)).load() == value
    Plain.check_folder(str(tmp_path))


def test_json_keeps_numbers_that_are_not_finite(tmp_path: Path) -> None:
    Plain.save([math.nan, math.inf, -math.inf], tmp_path / "value.json")
    nan, plus, minus = Plain.at(str(tmp_path)).load()
    assert math.isnan(nan)
    assert (plus, minus) == (math.inf, -math.inf)


def test_text_comes_back_byte_for_byte(tmp_path: Path) -> None:
    Note.save("a\r\nb\n\u2028c", tmp_path / "value.txt")
    assert Note.at(str(tmp_path)).load() == "a\r\nb\n\u2028c"


def test_a_folder_kind_gives_its_folder(tmp_path: Path) -> None:
    assert Tree.at(str(tmp_path)).load() == tmp_path
    assert Tree.at(str(tmp_path)).path == tmp_path


def test_a_kind_without_a_codec_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match=r"job\.made\(Bare\)"):
        Bare.save(1, tmp_path)
    with pytest.raises(NotImplementedError, match=r"read below \.path"):
        Bare.at(str(tmp_path)).load()


def test_where_an_artifact_lies_is_found_out_when_asked() -> None:
    asked = []

    def where() -> str:
        asked.append(1)
        return "/somewhere"

    handle = Plain(Digest("d" * 64), where)
    assert not asked
    assert handle.path == Path("/somewhere/value.json")
    assert (handle.digest, handle.staged_in) == ("d" * 64, "")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "found nothing"),
        (["other.json"], "found other.json"),
        (["value.json", "extra"], "found extra, value.json"),
    ],
)
def test_a_file_kind_holds_exactly_its_file(tmp_path: Path, files: list[str], says: str) -> None:
    for name in files:
        (tmp_path / name).write_text("1")
    with pytest.raises(ValueError, match=f"expected the single file value.json, {says}"):
        Plain.check_folder(str(tmp_path))


def test_a_file_that_is_not_of_its_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "value.json").write_text("{")
    with pytest.raises(ValueError, match=r"."):
        Plain.check_folder(str(tmp_path))


def test_a_folder_kind_has_its_own_validator(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it has no index"):
        Small.check_folder(str(tmp_path))
    (tmp_path / "index").touch()
    Small.check_folder(str(tmp_path))
