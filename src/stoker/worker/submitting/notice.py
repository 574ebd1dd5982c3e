"""What a command is told that runs when a submission has ended: variables, made purely from how its jobs stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stoker.model.lifecycle import JobState
from stoker.wire.views import JobView

PREFIX = "STOKER_NOTIFY_"
_MOST_NAMES = 100


def notice_variables(views: Iterable[JobView], *, url: str) -> dict[str, str]:
    """Give the variables: STATE is the worst that happened, then how many there were of each, and their names."""
    jobs = list(views)
    counts = Counter(view.state for view in jobs)
    state = next((one for one in _WORST_FIRST if counts[one]), JobState.COMPLETED)
    failed = [view for view in jobs if view.state == JobState.FAILED]
    told = {
        "STATE": state.value,
        "JOBS": str(len(jobs)),
        **{one.value.upper(): str(counts[one]) for one in _WORST_FIRST},
        "NAMES": " ".join(view.name for view in jobs[:_MOST_NAMES]),
        "IDS": " ".join(view.id for view in jobs[:_MOST_NAMES]),
        "WHY": failed[0].why if failed else "",
        "URL": url,
    }
    return {f"{PREFIX}{name}": value for name, value in told.items()}


_WORST_FIRST = (JobState.FAILED, JobState.CANCELLED, JobState.COMPLETED)
