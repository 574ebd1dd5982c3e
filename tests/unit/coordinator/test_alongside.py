"""A thread beside everything else survives what one try of it runs into."""

from __future__ import annotations

import logging

import pytest

from stoker.core.errors import Unavailable
from stoker.host.background import RecurringTask
from tests.unit.host.real_processes import wait_until


class Trying(RecurringTask):
    """Runs into one error after the other, and then goes on."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__("trying", retry_s=0.0)
        self._errors = list(errors)
        self.went_on = 0

    def act(self) -> float:
        if self._errors:
            raise self._errors.pop(0)
        self.went_on += 1
        return 0.0


def test_a_thread_goes_on_after_any_error_and_tells_of_the_same_bug_once(caplog: pytest.LogCaptureFixture):
    bug = ValueError("no median")
    with caplog.at_level(logging.ERROR), Trying(bug, Unavailable("the disk is away"), bug, KeyError("x")) as trying:
        wait_until(lambda: trying.went_on > 0)
    assert [record.getMessage() for record in caplog.records] == [
        "stoker-trying: internal error, continuing: ValueError: no median",
        "stoker-trying: internal error, continuing: KeyError: 'x'",
    ]
