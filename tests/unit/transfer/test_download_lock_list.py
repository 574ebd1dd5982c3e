"""A lock list is read strictly: everything wrong with it is told at once, each with its line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.core.digests import Digest
from stoker.core.errors import InvalidInput, LocalFile
from stoker.transfer.download.lock_list import (
    LockedFile,
    is_lock_list,
    leaf_of,
    merge_lists,
    read_lock_list,
    write_lock_list,
)

A, B = Digest("a" * 64), Digest("b" * 64)


def entry(**changes: object) -> dict[str, object]:
    return {"id": "m", "sha256": A, "bytes": 3, "urls": ["https://h.example/m.bin"], "license": "mit", **changes}


def write(folder: Path, raw: object) -> str:
    path = folder / "models.lock.json"
    path.write_text(json.dumps(raw, indent=2))
    return str(path)


def faults_of(path: str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        read_lock_list(path)
    return [str(fault).replace(path, "L") for fault in caught.value.faults]


def test_a_list_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    files = (
        LockedFile(id="one", sha256=A, size_bytes=0, urls=("https://h.example/a%20b.bin?x=1", "http://m.example/z")),
        LockedFile(id="two", sha256=B, size_bytes=1 << 40, urls=("https://h.example/b",), license="apache-2.0"),
    )
    path = str(tmp_path / "models.lock.json")
    write_lock_list(path, files)
    assert read_lock_list(path) == files
    assert files[0].name == f"{A}/a b.bin"


def test_a_digest_may_be_given_in_capitals_and_a_license_may_be_missing(tmp_path: Path) -> None:
    raw = entry(sha256="A" * 64)
    del raw["license"]
    (file,) = read_lock_list(write(tmp_path, [raw, entry(id="n", license=None)])[:])[:1]
    assert (file.sha256, file.license) == (A, "")


def test_all_faults_come_at_once_with_line_and_key(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [
            entry(),
            entry(id="m", sha256="xyz", bytes=-1, urls=[]),
            entry(id="n", url=["https://h.example/x"], bytes=True),
            entry(id="o", urls=["ftp://h.example/x", "https://h.example/ok", 7], license=3),
            "text",
            {"id": ""},
        ],
    )
    assert faults_of(path) == [
        "L:12: [1].id: 'm' is in the list twice, first as [0]",
        "L:13: [1].sha256: must be 64 hexadecimal digits, is 'xyz'",
        "L:14: [1].bytes: must be a whole number from 0 to 2^63 - 1, is -1",
        "L:15: [1].urls: must be a list of at least one URL, is []",
        "L:26: [2].url: is not a field of a listed file (did you mean 'urls'?)",
        "L:21: [2].bytes: must be a whole number from 0 to 2^63 - 1, is True",
        "L:35: [3].urls[0]: not a web address: ftp://h.example/x",
        "L:37: [3].urls[2]: must be a URL, is 7",
        "L:39: [3].license: must be text, is 3",
        "L:41: [4]: must be an object, is 'text'",
        "L:43: [5].id: must be text, is ''",
        "L:42: [5].sha256: must be 64 hexadecimal digits, is missing",
        "L:42: [5].bytes: must be a whole number from 0 to 2^63 - 1, is missing",
        "L:42: [5].urls: must be a list of at least one URL, is missing",
    ]


def test_a_key_given_twice_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "models.lock.json"
    path.write_text(f'[{{"id": "m", "bytes": 1,\n "sha256": "{A}", "urls": ["https://h.example/m"],\n "bytes": 2}}]')
    assert faults_of(str(path)) == ["L:3: [0].bytes: is given twice"]


@pytest.mark.parametrize("url", ["https://h.example/", "https://h.example/..", "https://h.example/con"])
def test_an_address_whose_name_could_not_be_a_file_is_a_fault(tmp_path: Path, url: str) -> None:
    (fault,) = faults_of(write(tmp_path, [entry(urls=[url])]))
    assert fault.startswith("L:7: [0].urls[0]: ")
    # Mirrors may call it what they like.
    read_lock_list(write(tmp_path, [entry(urls=["https://h.example/m.bin", url])]))


@pytest.mark.parametrize(
    ("text", "why"), [("{", "is not JSON"), ('{"id": 1}', "is a list of files"), ("NaN", "not JSON")]
)
def test_what_is_no_list_is_told_as_that(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "models.lock.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=why):
        read_lock_list(str(path))


def test_a_list_that_is_missing_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LocalFile, match="no such file"):
        read_lock_list(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("url", "leaf"),
    [
        ("https://h/a/b.gguf?sig=1#x", "b.gguf"),
        ("https://h/a%20b", "a b"),
        ("https://h/..%2fx", "x"),
        ("https://h/a/", ""),
        ("https://h", ""),
    ],
)
def test_the_last_part_of_an_address_names_a_file(url: str, leaf: str) -> None:
    assert leaf_of(url) == leaf


@pytest.mark.parametrize(
    ("text", "is_list"),
    [
        ("[]", True),
        (" [ ]\n", True),
        ('[{"id": "a", "sha256": 3}]', True),
        ('[\n  {\n    "urls": []', True),
        ('[{"id": "a", "text": "b"}]', False),
        ('[{"id": {"sha256": 1}}]', False),
        ('{"sha256": 1}', False),
        ("[1, 2]", False),
        ("", False),
    ],
)
def test_a_list_is_known_by_how_it_begins(tmp_path: Path, text: str, is_list: bool) -> None:
    (tmp_path / "file").write_text(text)
    assert is_lock_list(str(tmp_path / "file")) is is_list
    assert not is_lock_list(str(tmp_path))
    assert not is_lock_list(str(tmp_path / "nothing"))


def test_lists_are_merged_by_id_in_their_order_and_mirrors_stay_with_their_bytes():
    def one(name: str, sha256: str, *urls: str) -> LockedFile:
        return LockedFile(id=name, sha256=Digest(sha256 * 64), size_bytes=1, urls=urls)

    old = [one("a", "a", "https://hub/1/a", "https://mirror/a"), one("b", "b", "https://hub/1/b", "https://mirror/b")]
    new = [one("c", "c", "https://hub/2/c"), one("b", "d", "https://hub/2/b"), one("a", "a", "https://hub/2/a")]
    assert merge_lists(old, new) == (
        one("a", "a", "https://hub/2/a", "https://mirror/a"),
        one("b", "d", "https://hub/2/b"),
        one("c", "c", "https://hub/2/c"),
    )


@pytest.mark.parametrize("suffix", [".lock", ".part", ".part.json", ".LOCK"])
def test_files_that_would_meet_the_side_files_of_another_are_refused(tmp_path: Path, suffix: str) -> None:
    entries = [
        entry(id="one", urls=[f"https://h.example/x{suffix}"]),
        entry(id="two", urls=["https://h.example/x"]),
        entry(id="three", sha256=B, urls=[f"https://h.example/y{suffix}"]),
        entry(id="four", sha256=B, urls=["https://h.example/y"]),
        entry(id="five", sha256=B, urls=["https://h.example/x"]),
    ]
    with pytest.raises(InvalidInput) as caught:
        read_lock_list(write(tmp_path, entries))
    assert [fault.where.rpartition(": ")[2] for fault in caught.value.faults] == ["[0].urls[0]", "[2].urls[0]"]
    assert "[1]" in caught.value.faults[0].message
    assert len(read_lock_list(write(tmp_path, [entries[0], entries[3], entries[4]]))) == 3


def test_of_very_many_faults_only_the_first_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    path = write(tmp_path, [entry(id=f"m{number}", sha256="zz") for number in range(1000)])
    with pytest.raises(InvalidInput) as caught:
        read_lock_list(path)
    assert caught.value.message == f"1000 errors in {path}"
    assert len(caught.value.faults) == 21
    assert caught.value.faults[-1].message == "980 more errors"


def test_no_file_is_larger_than_files_can_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="whole number from 0"):
        read_lock_list(write(tmp_path, [entry(bytes=10**400)]))
    assert len(read_lock_list(write(tmp_path, [entry(bytes=2**63 - 1)]))) == 1
