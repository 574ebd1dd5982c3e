"""Points of a fleet's sweep as trials that are compared."""

from __future__ import annotations

from typing import Any

from stoker.api.fleet_job import as_point
from stoker.core.digests import digest_value
from stoker.core.job import TrialNodes
from stoker.jobs.comparison import TrialFacts
from stoker.jobs.trial_watch import TrialScore
from stoker.jobs.trials import TrialEnd, on_grounds
from stoker.protocol.view_messages import JobView
from tests.fakes.jobs import made_trial


def point(number: int, measured_on: dict[str, Any], **varied: Any) -> TrialScore:
    """Return what compares a point that ran as a job of its own, on some machine."""
    trial = made_trial(
        number=1,
        label="",
        point=varied,
        args={},
        job_id=digest_value("t", number),
        nodes=TrialNodes(final="run", keep=(), nodes=("run",)),
        measured_on=measured_on,
    )
    view = JobView(
        id="j",
        name=f"sweep/{number}",
        label=f"point {number}",
        recipe="r",
        state="completed",
        priority=0,
        epoch=0,
        attempt=1,
        submitted_s=0,
        changed_s=0,
    )
    end = as_point(TrialFacts(end=TrialEnd(trial=trial, state="completed"), curve_files=()), view).end
    assert (end.trial.spec.number, end.trial.spec.label) == (number, f"point {number}")
    return TrialScore(n=number, end=end)


def test_places_of_data_on_machines_set_no_points_apart_but_what_was_varied_does() -> None:
    here, there = {"data": "/here/x.jsonl", "max_seq_len": 512}, {"data": "/there/x.jsonl", "max_seq_len": 512}
    same = [point(1, here, lr=0.1), point(2, there, lr=0.2)]
    assert [dict(ground.told_by) for ground in on_grounds(same, same)] == [{}]
    varied = [point(1, here, data="x.jsonl"), point(2, there, data="y.jsonl")]
    assert [dict(ground.told_by) for ground in on_grounds(varied, varied)] == [{"data": "x.jsonl"}, {"data": "y.jsonl"}]
    unset = [point(1, here, max_seq_len=None), point(2, there, max_seq_len=512)]
    assert len(on_grounds(unset, unset)) == 1, "left out, it is what was settled"
