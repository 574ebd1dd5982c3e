"""Waiting for jobs of the fleet: until all have ended, or until a time is over. Events wake it; nothing is polled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from stoker.core.clock import Clock
from stoker.core.job import JobState
from stoker.protocol.client import FleetClient
from stoker.protocol.view_messages import JobView

_BEAT_S = 15.0
_SHORTEST_BEAT_S = 0.05
_PAGE = 1000
_ENDS = frozenset(state.value for state in JobState if state.is_terminal)


def wait_for(
    client: FleetClient,
    jobs: Iterable[JobView],
    *,
    clock: Clock,
    limit_s: float | None = None,
    ended: Callable[[JobView], None] = lambda _view: None,
) -> dict[str, JobView]:
    """Wait until jobs have ended, and give those that have, by id; fewer if the limit came first.

    `ended` is told of each as it ends. A coordinator that starts again meanwhile is waited for, too.
    """
    client = client.more_patient()
    until_s = None if limit_s is None else clock.monotonic_s() + limit_s
    left = {view.id: view for view in jobs}
    found: dict[str, JobView] = {}

    def note(view: JobView) -> None:
        if view.id in left and JobState(view.state).is_terminal:
            del left[view.id]
            found[view.id] = view
            ended(view)

    # Silence is noticed once in a beat, so a limit is kept to a tenth of it.
    beat_s = _BEAT_S if limit_s is None else max(_SHORTEST_BEAT_S, min(_BEAT_S, limit_s / 10))
    events = client.events(beat_s=beat_s)
    # The stream is open before the first look: what happens in between is heard.
    next(events)
    for view in _as_they_stand(client, left):
        note(view)
    while left and (until_s is None or clock.monotonic_s() < until_s):
        event = next(events)
        if event is not None and event.data.get("job") in left and event.data.get("to") in _ENDS:
            note(client.job(str(event.data["job"])).job)
    return found


def _as_they_stand(client: FleetClient, jobs: Mapping[str, JobView]) -> Iterator[JobView]:
    """Return jobs as they are now: the points of a sweep page by page, the rest one by one."""
    missing = dict(jobs)
    for sweep in {view.name.rpartition("/")[0] for view in jobs.values()} if len(jobs) > 1 else ():
        for view in points_of(client, sweep) if sweep else ():
            if missing.pop(view.id, None) is not None:
                yield view
    for job in missing:
        yield client.job(job).job


def points_of(client: FleetClient, name: str) -> list[JobView]:
    """Return the points of a sweep by its bare name, in their order: of each the newest. None if it is no sweep."""
    found: dict[int, JobView] = {}
    after = ""
    while True:
        page = client.jobs(name=name, after=after, limit=_PAGE)
        for view in page.jobs:
            base, _, number = view.name.rpartition("/")
            if base == name and number.isascii() and number.isdigit():
                found.setdefault(int(number), view)
        after = page.next
        if not after:
            return [found[number] for number in sorted(found)]
