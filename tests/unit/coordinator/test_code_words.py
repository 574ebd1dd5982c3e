"""Words for programs' code: what a commit may contain, and what a machine that accepts some code denies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from stoker.coordinator.queue.queue_state import unaccepted
from stoker.core.frozen import fields_of
from stoker.core.machine import code_word
from stoker.protocol.job_messages import JOB_BODY
from tests.contract.queue_driving import order

TREE, OTHER = "a" * 64, "b" * 64


def test_a_commit_with_colons_that_was_stored_before_breaks_no_offer():
    words = {code_word(TREE, "x:y"), code_word(OTHER, "x:y:z"), code_word("", "starts nothing")}
    book: Any = SimpleNamespace(code_words=words)
    machine: Any = SimpleNamespace(accepts=(TREE,))
    denied = unaccepted(book, machine)
    assert set(denied) == {code_word(OTHER, "x:y:z"), code_word("", "starts nothing")}
    assert denied[code_word("", "starts nothing")].endswith("and this starts nothing")


@pytest.mark.parametrize("commit", ["x:y", "a b", "a\n", "é", "a" * 101])
def test_a_commit_that_is_no_name_of_one_is_refused(commit: str):
    with pytest.raises(ValidationError):
        JOB_BODY.validate_python({**fields_of(order("one")), "commit": commit})


@pytest.mark.parametrize("commit", ["", "c" * 40, f"{'c' * 64}+12"])
def test_a_commit_as_submitting_programs_write_it_is_taken(commit: str):
    assert JOB_BODY.validate_python({**fields_of(order("one")), "commit": commit}).commit == commit
