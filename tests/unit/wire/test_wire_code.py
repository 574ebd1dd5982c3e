"""Which code is accepted: by tree or by commit, whole or by its first digits, and never with changes on top."""

from __future__ import annotations

import pytest

from stoker.wire.code import is_code_word, why_not_accepted

TREE, COMMIT = "a" * 64, "b" * 40


@pytest.mark.parametrize(
    "accepts",
    [(), (TREE,), (COMMIT,), (TREE[:7],), (COMMIT[:12],), ("c" * 40, COMMIT)],
    ids=["any", "tree", "commit", "short tree", "short commit", "one of two"],
)
def test_what_is_named_is_accepted(accepts: tuple[str, ...]) -> None:
    assert why_not_accepted(accepts, TREE, COMMIT) == ""


def test_why_not_says_what_is_accepted_and_what_this_is() -> None:
    only = "accepts only cccccccccccc"
    assert why_not_accepted(("c" * 40,), TREE, COMMIT) == f"{only}, and this is commit {COMMIT[:12]}"
    assert why_not_accepted(("c" * 40,), TREE, "") == f"{only}, and this is tree {TREE[:12]}"
    assert "in a folder" in why_not_accepted(("c" * 40,), "", COMMIT)
    many = tuple(f"{number:07d}" for number in range(5))
    assert "and 2 more" in why_not_accepted(many, TREE, COMMIT)


def test_a_commit_with_changes_on_top_is_another() -> None:
    why = why_not_accepted((COMMIT,), TREE, f"{COMMIT}+2")
    assert why.endswith(f"and this is {COMMIT[:12]} with 2 uncommitted changes")
    # Whoever pins the tree itself has seen the changes.
    assert why_not_accepted((TREE,), TREE, f"{COMMIT}+2") == ""


@pytest.mark.parametrize("word", ["main", "abc", "", "g" * 40, "a" * 65])
def test_words_that_name_no_code(word: str) -> None:
    assert not is_code_word(word)
