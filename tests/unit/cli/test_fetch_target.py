"""What `stoker fetch` is pointed at: repositories, their pages, and any other address."""

from __future__ import annotations

import pytest

from stoker.cli.fetch import Target, read_target
from stoker.core.errors import BadInput, Usage
from stoker.transfer.hub.listing import Repo

HUB = "https://hub.example"
REPO = Repo(name="org/repo")


def read(text: str, *names: str, revision: str | None = None) -> Target:
    return read_target(text, revision=revision, names=names, endpoint=HUB)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("org/repo", Target(repo=REPO)),
        ("hf://org/repo", Target(repo=REPO)),
        ("org/repo@v1.0", Target(repo=REPO, revision="v1.0")),
        ("hf://datasets/org/repo@refs/pr/3", Target(repo=Repo(kind="dataset", name="org/repo"), revision="refs/pr/3")),
        (f"{HUB}/org/repo", Target(repo=REPO)),
        (f"{HUB}/datasets/org/repo/", Target(repo=Repo(kind="dataset", name="org/repo"))),
        (f"{HUB}/org/repo/tree/main", Target(repo=REPO)),
        (f"{HUB}/org/repo/tree/v2/a/b", Target(repo=REPO, revision="v2", names=("a/b/",))),
        (f"{HUB}/org/repo/blob/main/a/b.bin", Target(repo=REPO, names=("a/b.bin",), is_address=True)),
        (
            f"{HUB}/org/repo/resolve/v2/b%20c.bin?download=true",
            Target(repo=REPO, revision="v2", names=("b c.bin",), is_address=True),
        ),
        ("https://else.example/org/repo", Target(url="https://else.example/org/repo", is_address=True)),
        (f"{HUB}:8443/org/repo", Target(url=f"{HUB}:8443/org/repo", is_address=True)),
        (f"{HUB}/file.bin", Target(url=f"{HUB}/file.bin", is_address=True)),
        (f"{HUB}/api/models/org/repo", Target(url=f"{HUB}/api/models/org/repo", is_address=True)),
        (f"{HUB}/org/repo/discussions/1", Target(url=f"{HUB}/org/repo/discussions/1", is_address=True)),
    ],
)
def test_a_target_is_a_repository_a_page_of_one_or_an_address(text: str, target: Target) -> None:
    assert read(text) == target


def test_names_and_a_revision_go_with_a_repository_however_it_is_written() -> None:
    assert read("org/repo", "a", "b/", revision="v1") == Target(repo=REPO, revision="v1", names=("a", "b/"))
    assert read(f"{HUB}/org/repo", "a", revision="v1") == Target(repo=REPO, revision="v1", names=("a",))


@pytest.mark.parametrize(
    ("text", "names", "revision"),
    [
        (f"{HUB}/org/repo/blob/main/a", ("b",), None),
        ("https://else.example/a", ("b",), None),
        ("https://else.example/a", (), "v1"),
        ("https://else.example/", (), None),
        ("https://else.example/..", (), None),
        ("https://else.example/con", (), None),
        ("https://", (), None),
        ("org/repo@a b", (), None),
        ("org/repo@v1", (), "v2"),
        ("org/../repo", (), None),
        ("", (), None),
    ],
)
def test_what_means_nothing_is_refused(text: str, names: tuple[str, ...], revision: str | None) -> None:
    with pytest.raises(BadInput):
        read(text, *names, revision=revision)


def test_a_file_from_an_address_is_called_by_its_last_part() -> None:
    assert read(f"{HUB}/org/repo/blob/main/a/b.bin").leaf == "b.bin"
    assert read("https://else.example/a/b%20c?x=1").leaf == "b c"
    assert str(read("https://me:pass@else.example/a?x=1")) == "https://else.example/a"


@pytest.mark.parametrize("name", ["../x", "a/../../x.gguf", "/etc/passwd", "a\\b", "../"])
def test_a_name_that_leads_elsewhere_is_the_fault_of_whoever_typed_it(name: str) -> None:
    with pytest.raises(Usage, match="is not a file name"):
        read("org/repo", name)


def test_a_page_whose_file_leads_elsewhere_is_refused() -> None:
    with pytest.raises(Usage):
        read(f"{HUB}/org/repo/blob/main/..%2F..%2Fx")
