from __future__ import annotations

import pytest

from stoker.core.digests import digest_value
from stoker.core.job import TrialNodes
from stoker.jobs.trials import TrialEnd, decide_give_up
from tests.fakes.jobs import made_trial

NODES = TrialNodes(final="run", keep=(), nodes=("run",))
TRIAL = made_trial(number=1, label="x=1", point={}, args={}, job_id=digest_value("t", 1), nodes=NODES)


def failed(message: str, cause: str = "user") -> TrialEnd:
    return TrialEnd(trial=TRIAL, state="failed", cause=cause, message=message)


GOOD = TrialEnd(trial=TRIAL, state="completed")
KEPT = TrialEnd(trial=TRIAL, state="completed", is_kept=True)


@pytest.mark.parametrize(
    ("ends", "left", "gives_up"),
    [
        ([failed("no module x")] * 3, 7, True),
        ([failed("no module x")] * 2, 7, False),
        ([failed("no module x")] * 3, 0, False),
        ([failed("no module x")] * 3 + [GOOD], 7, False),
        ([GOOD] + [failed("no module x")] * 5, 7, False),
        # What was kept from another day says nothing about today.
        ([KEPT, KEPT] + [failed("no module x")] * 3, 7, True),
        ([failed("no module x"), failed("no module x"), failed("no module y")], 7, False),
        # Numbers tell trials apart, not failures.
        ([failed(f"loss is nan at step {n} (lr={n}e-3, 0x{n:x})") for n in (3, 14, 159)], 7, True),
        ([failed("out of memory", "oom_host")] * 2 + [failed("out of memory")], 7, False),
        # But the one that a program ended with is the failure.
        ([failed(f"exit {n}") for n in (1, 2, 13)], 7, False),
        ([failed("exit 13")] * 3, 7, True),
        # What diverged did so by its own values.
        ([failed("loss is nan at step 3", "diverged")] * 3, 5, False),
    ],
)
def test_a_sweep_is_given_up_when_everything_fails_in_one_way(ends: list[TrialEnd], left: int, gives_up: bool) -> None:
    decision = decide_give_up(ends, left)
    assert (decision is not None) is gives_up


def test_the_reason_says_how_everything_failed() -> None:
    decision = decide_give_up([failed("no module x")] * 4, 2)
    assert decision is not None
    assert decision.why == "all 4 trials that ran failed in the same way: no module x"
