"""What a company prints, on its way to its members."""

from __future__ import annotations

import io

from stoker.model.json_text import dumps
from stoker.model.retry import Cause
from stoker.plan.child import answer_of
from stoker.plan.company.child import Everybody
from stoker.plan.runner import Failed


def test_lines_are_told_whole() -> None:
    told: list[str] = []
    stream = Everybody(io.StringIO(), told.append)
    for text in ("one", " line\ntwo\nthr", "ee\n"):
        stream.write(text)
    assert told == ["one line\ntwo", "three"]


def test_what_never_ends_its_line_is_told_in_pieces_and_not_kept() -> None:
    told: list[str] = []
    own = io.StringIO()
    stream = Everybody(own, told.append)
    for step in range(20_000):
        stream.write(f"\r{step}")
    stream.write("\n")
    assert "".join(told) == own.getvalue().removesuffix("\n")
    assert max(map(len, told)) < 20_000


def test_an_answer_is_short_whatever_its_stage_met() -> None:
    long = "x" * 10_000_000
    answer = answer_of(Failed(cause=Cause.INPUT, message=long, hint=long, detail=long))
    assert len(dumps(answer)) < 150_000
