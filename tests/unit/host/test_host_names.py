from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import BadInput
from stoker.host.folders import check_name, clashes, name_fault


@pytest.mark.parametrize(
    "name",
    [
        "model.gguf",
        "a/b/c",
        ".gitattributes",
        "common",
        "console.log",
        "com10",
        "é/ü",
        "a b.txt",
        "..a",
        "x" * 255,
        "a*?<",
    ],
)
def test_an_ordinary_name_is_given_back(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("..", "'..'"),
        ("a/../b", "'..'"),
        ("./a", "'.'"),
        ("a//b", "empty part"),
        ("a/", "empty part"),
        ("a\\b", "backslash"),
        ("\\\\server\\share", "backslash"),
        ("C:x", "drive"),
        ("a/b:stream", "stream"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x9bb", "control"),
        ("a\ud800", "Unicode"),
        ("CON", "device"),
        ("nul.tar.gz", "device"),
        ("aux .txt", "device"),
        ("a/COM\u00b9.txt", "device"),
        ("lpt\u00b3", "device"),
        ("CONIN$", "device"),
        ("a.", "dot"),
        ("a /b", "space"),
        ("é" * 128, "255"),
        ("a/" * 600 + "a", "1024"),
        ("é/" * 350 + "a", "1024"),
        ("a/" * 100 + "a", "levels"),
        ("gpj.\u202eexe", "turns"),
        ("a\u2066b", "turns"),
        ("a\u200fb", "turns"),
        ("a\u2028b", "break"),
    ],
)
def test_a_name_that_leads_elsewhere_on_some_system_is_refused(name, fault):
    assert fault in name_fault(name)
    with pytest.raises(BadInput) as refused:
        check_name(name)
    assert refused.value.message.isprintable()
    assert refused.value.exit_code == 2


@given(st.text())
def test_a_safe_name_stays_below_its_folder(name):
    if not name_fault(name):
        assert ".." not in name.split("/")
        assert not name.startswith("/")
        assert "\0" not in name


def test_names_that_differ_in_case_clash():
    assert clashes(["README.md", "a", "readme.MD"]) == (("README.md", "readme.MD"),)


def test_names_that_differ_in_how_a_letter_is_composed_clash():
    assert clashes(["caf\u00e9", "cafe\u0301"]) == (("caf\u00e9", "cafe\u0301"),)


def test_letters_that_fold_to_several_clash():
    assert clashes(["stra\u00dfe", "STRASSE"]) == (("stra\u00dfe", "STRASSE"),)


def test_a_name_that_is_a_file_and_a_folder_clashes():
    assert clashes(["a", "a/b/c"]) == (("a", "a/b/c"),)
    assert clashes(["x/A", "x/a/b"]) == (("x/A", "x/a/b"),)


def test_folders_may_be_shared_and_a_name_may_be_given_twice():
    assert clashes(["a/b", "a/c", "a/b", "ab"]) == ()


@pytest.mark.parametrize("name", ["a/" * 2_000_000, "e\u0301\u0323" * 1_000_000])
def test_a_name_of_megabytes_is_refused_at_once_and_in_few_words(name):
    with pytest.raises(BadInput) as refused:
        check_name(name)
    assert len(refused.value.message) < 250
    assert len(str(refused.value.data)) < 250


def test_what_lies_below_a_file_clashes_with_it_whatever_sorts_between_them():
    names = ["a/b/c", "a", "a-b", "a.txt", "A/d", "ab/c", "b"]
    assert set(clashes(names)) == {("a", "a/b/c"), ("a", "A/d")}


def test_deep_names_are_compared_without_walking_each_way_part_by_part():
    deep = "/".join(["a"] * 100_000)
    assert clashes([deep, f"{deep}/b", "b"]) == ((deep, f"{deep}/b"),)
