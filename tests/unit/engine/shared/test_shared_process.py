"""What a shared process prints, on its way to its members."""

from __future__ import annotations

import io

from stoker.core.jsontext import dumps
from stoker.core.retry import FailureCause
from stoker.engine.runners.shared.shared_process import MemberLogStream
from stoker.engine.runners.stage_runner import StageFailure, answer_of


def test_lines_are_told_whole() -> None:
    told: list[str] = []
    stream = MemberLogStream(io.StringIO(), told.append)
    for text in ("one", " line\ntwo\nthr", "ee\n"):
        stream.write(text)
    assert told == ["one line\ntwo", "three"]


def test_what_never_ends_its_line_is_told_in_pieces_and_not_kept() -> None:
    told: list[str] = []
    own = io.StringIO()
    stream = MemberLogStream(own, told.append)
    for step in range(20_000):
        stream.write(f"\r{step}")
    stream.write("\n")
    assert "".join(told) == own.getvalue().removesuffix("\n")
    assert max(map(len, told)) < 20_000


def test_an_answer_is_short_whatever_its_stage_met() -> None:
    long = "x" * 10_000_000
    answer = answer_of(StageFailure(cause=FailureCause.INPUT, message=long, hint=long, detail=long))
    assert len(dumps(answer)) < 150_000
