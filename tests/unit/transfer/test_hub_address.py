import pytest

from stoker.core.errors import BadInput
from stoker.transfer.hub.listing import (
    Repo,
    check_endpoint,
    check_revision,
    file_url,
    is_commit,
    read_repo,
    read_repo_at,
    revision_url,
    tree_url,
)

HUB = "https://huggingface.co"


@pytest.mark.parametrize(
    ("text", "kind", "name", "folder"),
    [
        ("org/name", "model", "org/name", "models--org--name"),
        ("gpt2", "model", "gpt2", "models--gpt2"),
        ("datasets/org/name", "dataset", "org/name", "datasets--org--name"),
        ("hf://spaces/org/name", "space", "org/name", "spaces--org--name"),
        ("models/org/name", "model", "org/name", "models--org--name"),
        ("Org_1/na-me.v2", "model", "Org_1/na-me.v2", "models--Org_1--na-me.v2"),
    ],
)
def test_a_repository_is_read_from_what_people_write(text, kind, name, folder):
    repo = read_repo(text)
    assert (repo.kind, repo.name, repo.folder) == (kind, name, folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "..",
        "org/..",
        "../name",
        "org/name/more",
        "org--x/name",
        "org/na..me",
        ".org/name",
        "org/name.",
        "-org/name",
        "org/name.git",
        "org\\name",
        "org/na me",
        "org/na\0me",
        "org/na\nme",
        "datasets/a/b/c",
        "o/" + "n" * 96,
        "org/ñame",
        "https://huggingface.co/org/name",
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(text):
    with pytest.raises(BadInput, match="not the name of a repository"):
        read_repo(text)


@pytest.mark.parametrize("text", ["main", "v1.0", "refs/pr/12", "feature/a-b", "1234abc", "0" * 40])
def test_a_revision_is_a_branch_a_tag_a_pull_request_or_a_commit(text):
    assert check_revision(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "..", "a/../b", "/main", "a//b", ".hidden", "a/.b.lock", "a.lock", "a b", "a\nb", "a\0", "é", "a" * 201],
)
def test_a_revision_that_is_no_safe_path_is_refused(text):
    with pytest.raises(BadInput, match="not a revision"):
        check_revision(text)


def test_a_repository_is_meant_at_its_main_revision_unless_another_is_named():
    repo = Repo(name="org/name")
    assert read_repo_at("org/name") == read_repo_at("org/name@") == (repo, "main")
    assert read_repo_at("org/name@refs/pr/1") == (repo, "refs/pr/1")
    for text in ("org/name@../up", "a/b/c@main"):
        with pytest.raises(BadInput):
            read_repo_at(text)


def test_only_forty_small_hex_digits_are_a_commit():
    assert is_commit("0123456789abcdef" * 2 + "01234567")
    assert not is_commit("0123456789ABCDEF" * 2 + "01234567")
    assert not is_commit("abc1234")
    assert not is_commit("0" * 41)


def test_addresses_escape_what_has_a_meaning_of_its_own():
    repo = Repo(kind="dataset", name="org/name")
    assert revision_url(HUB, repo, "refs/pr/1") == f"{HUB}/api/datasets/org/name/revision/refs%2Fpr%2F1"
    assert tree_url(HUB, repo, "main").startswith(f"{HUB}/api/datasets/org/name/tree/main?recursive=true")
    assert file_url(HUB, repo, "a/b", "x y/#1?.txt") == f"{HUB}/datasets/org/name/resolve/a%2Fb/x%20y/%231%3F.txt"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("https://huggingface.co/", HUB),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("https://proxy.example/hf/", "https://proxy.example/hf"),
    ],
)
def test_an_endpoint_may_have_a_port_and_a_path(text, endpoint):
    assert check_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text", ["", "huggingface.co", "ftp://host", "https://", "https://host/?a=b", "https://host/#x"]
)
def test_what_is_no_address_is_no_endpoint(text):
    with pytest.raises(BadInput):
        check_endpoint(text)


def test_a_password_in_an_endpoint_is_refused_and_not_shown():
    with pytest.raises(BadInput) as caught:
        check_endpoint("https://me:secret@host/")
    assert "secret" not in str(caught.value.to_dict())
