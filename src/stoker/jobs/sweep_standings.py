"""How the trials of a sweep rank among each other, by what `engine.ranking` chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.frozen import frozen
from stoker.engine.ranking import Measure, best_first, measure_for
from stoker.jobs.program import flat
from stoker.jobs.trials import ComparableTrials, TrialEnd, on_grounds


@frozen
class TrialScore:
    """A trial that ended well, as ranking sees it."""

    n: int
    end: TrialEnd
    is_done: bool = True
    is_failed: bool = False

    @property
    def metrics(self) -> Mapping[str, float]:
        return {name: float(value) for name, value in self.end.metrics.items() if type(value) in (int, float)}

    @property
    def measured_on(self) -> Mapping[str, Any]:
        return self.end.trial.measured_on


@frozen
class TrialRanking:
    """Trials that ended well, best first."""

    standings: tuple[TrialScore, ...]
    measure: Measure

    @property
    def grounds(self) -> list[ComparableTrials[TrialScore]]:
        """Those that may be compared with each other, best first."""
        return on_grounds(self.standings, [one for one in self.standings if self.measure.metric in one.metrics])

    @property
    def best(self) -> TrialScore | None:
        """The best one, if what it is ranked by is a number and all that have it were measured on the same."""
        if len(self.grounds) > 1:
            return None
        value = self.standings[0].metrics.get(self.measure.metric)
        return None if value is None or not math.isfinite(value) else self.standings[0]


def rank_trials(ends: Sequence[TrialEnd], args: Mapping[str, Any]) -> TrialRanking | None:
    """Rank the trials that ended well, `args` being those of one of them; nothing if there is nothing to compare."""
    done = [TrialScore(n=end.trial.spec.number, end=end) for end in ends if end.state == "completed"]
    # A program's own parameters stand among its recipe's arguments.
    params = args.get("params")
    settings = {**flat(args), **(flat(params) if isinstance(params, Mapping) else {})}
    measure = measure_for(done, settings) if len(done) > 1 else None
    return None if measure is None else TrialRanking(standings=tuple(best_first(done, measure)), measure=measure)
