import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import BadAnswer
from stoker.transfer.hub.listing import Repo, RepoFile, check_names, read_commit, read_entries, read_next

URL = "https://hub.example/api/models/org/name/tree/main?recursive=true"
SHA1, SHA256 = "a" * 40, "b" * 64
PLAIN = {"type": "file", "path": "a.txt", "size": 3, "oid": SHA1}
LARGE = {**PLAIN, "path": "m.bin", "lfs": {"oid": SHA256, "size": 99, "pointerSize": 130}, "xetHash": "c" * 64}


def entries(*listed: object) -> list[RepoFile]:
    return read_entries(json.dumps(listed).encode(), URL)


def test_a_file_that_git_keeps_is_known_by_its_sha1_and_a_large_one_by_its_sha256():
    small, large = entries(PLAIN, LARGE)
    assert (small.path, small.size_bytes, small.git_sha1, small.sha256, small.blob) == ("a.txt", 3, SHA1, None, SHA1)
    assert (large.size_bytes, large.git_sha1, large.pointer_sha1) == (99, "", SHA1)
    assert (large.sha256, large.blob, large.xet_hash) == (SHA256, SHA256, "c" * 64)


def test_folders_are_no_files():
    assert entries({"type": "directory", "path": "x", "oid": SHA1, "size": 0}) == []


@pytest.mark.parametrize(
    "entry",
    [
        "text",
        {},
        {**PLAIN, "path": 3},
        {**PLAIN, "size": -1},
        {**PLAIN, "size": "3"},
        {**PLAIN, "size": True},
        {**PLAIN, "size": 1 << 61},
        {**PLAIN, "size": None},
        {**PLAIN, "oid": "A" * 40},
        {**PLAIN, "oid": "../../x"},
        {**PLAIN, "oid": None},
        {**LARGE, "lfs": "x"},
        {**LARGE, "lfs": {"oid": "../" + "b" * 61, "size": 1}},
        {**LARGE, "lfs": {"oid": SHA256, "size": -5}},
    ],
)
def test_an_entry_that_can_not_be_is_refused(entry):
    with pytest.raises(BadAnswer):
        entries(entry)


def test_a_strange_xet_hash_only_means_that_the_shared_store_is_not_asked():
    assert entries({**LARGE, "xetHash": "../../etc"})[0].xet_hash == ""


@pytest.mark.parametrize("body", [b"", b"<html>login</html>", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_listing_is_refused(body):
    with pytest.raises(BadAnswer):
        read_entries(body, URL)


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"sha": "main"}', b'{"sha": null}', b'{"sha": "../../x"}', b"no"])
def test_what_names_no_commit_is_refused(body):
    with pytest.raises(BadAnswer):
        read_commit(body, URL)


def test_an_answer_may_hold_anything_beside_the_commit():
    assert read_commit(json.dumps({"sha": SHA1, "cardData": {"$x": [1]}}).encode(), URL) == SHA1


def test_a_message_never_shows_a_query():
    with pytest.raises(BadAnswer) as caught:
        read_commit(b"{}", "https://hub.example/x?token=secret")
    assert "secret" not in str(caught.value.to_dict())


@pytest.mark.parametrize(
    ("link", "following"),
    [
        ('<https://hub.example/next?cursor=1>; rel="next"', "https://hub.example/next?cursor=1"),
        ("<https://hub.example/next>; rel=next", "https://hub.example/next"),
        ('</api/x?cursor=2>; rel="next"', "https://hub.example/api/x?cursor=2"),
        ('<https://hub.example/1>; rel="prev", <https://hub.example/2>; rel="next"', "https://hub.example/2"),
        ('<https://hub.example/1>; rel="last"', ""),
        ("", ""),
        ("nonsense", ""),
    ],
)
def test_the_next_page_is_the_link_that_says_so(link, following):
    assert read_next([link] if link else [], URL) == following


@pytest.mark.parametrize(
    "link",
    ["https://evil.example/x", "http://hub.example/x", "https://hub.example:444/x", "//evil.example/x", "file:///etc"],
)
def test_a_next_page_on_another_server_is_refused(link):
    with pytest.raises(BadAnswer, match="another server"):
        read_next([f'<{link}>; rel="next"'], URL)


def test_all_bad_names_are_told_at_once_and_good_ones_pass():
    repo = Repo(name="org/name")
    check_names([RepoFile(path="a/b.txt"), RepoFile(path="c")], repo)
    bad = ["../x", "/y", "z\0", "con", "a:b", "q", "Q", "dir", "dir/file"]
    with pytest.raises(BadAnswer) as caught:
        check_names([RepoFile(path=path) for path in bad], repo)
    faults = caught.value.data["faults"]
    assert isinstance(faults, list)
    assert len(faults) == 7
    assert "\0" not in caught.value.message


def test_a_name_that_is_listed_twice_is_refused():
    twice = [RepoFile(path="a", git_sha1="1" * 40), RepoFile(path="a", git_sha1="2" * 40)]
    with pytest.raises(BadAnswer, match="listed 2 times"):
        check_names(twice, Repo(name="org/name"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["path", "size", "oid", "lfs", "type", "xetHash"]), JSON), max_size=3))
def test_whatever_a_server_lists_is_a_file_with_sound_facts_or_refused(listed):
    try:
        files = entries(*listed)
    except BadAnswer:
        return
    for file in files:
        assert isinstance(file.path, str)
        assert file.size_bytes is not None
        assert file.size_bytes >= 0
        assert len(file.blob) in (40, 64)
