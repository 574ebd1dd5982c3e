"""The filter of the list of jobs: `state:failed user:anna resnet` as a query, and whether a job matches one."""

from __future__ import annotations

from stoker.api.monitor import JobQuery
from stoker.core.errors import Usage
from stoker.core.frozen import changed
from stoker.core.job import JobState
from stoker.core.text import did_you_mean
from stoker.protocol.view_messages import JobView

_FIELDS = {
    "state": "state",
    "user": "submitter",
    "machine": "machine",
    "recipe": "recipe",
    "sweep": "sweep",
    "name": "name",
}
"""Words before the colon, and the field of a query that each sets."""
KEYS = tuple(_FIELDS)
_STATES = tuple(str(state) for state in JobState)
_EXAMPLE = "for example: state:failed,running user:anna resnet"


def parse_filter(text: str) -> JobQuery:
    """Return the query of a filter. Words without a colon are a part of the name or label. Raises `Usage`."""
    fields: dict[str, str] = {}
    words = []
    for word in text.split():
        key, colon, value = word.partition(":")
        if not colon:
            words.append(word)
            continue
        if key not in _FIELDS:
            hint = did_you_mean(key, KEYS) or f"known: {', '.join(KEYS)}"
            raise Usage(f"unknown filter {key!r}: {hint}", hint=_EXAMPLE)
        if not value:
            raise Usage(f"filter {key}: has no value", hint=_EXAMPLE)
        fields[_FIELDS[key]] = _states(value) if key == "state" else value
    if words:
        fields["name"] = " ".join(filter(None, (fields.get("name", ""), *words)))
    return changed(JobQuery(), **fields)


def filter_text(query: JobQuery) -> str:
    """Return a query as the text of a filter."""
    keyed = [f"{key}:{value}" for key, field in _FIELDS.items() if key != "name" and (value := getattr(query, field))]
    return " ".join(filter(None, (*keyed, query.name)))


def matches(query: JobQuery, view: JobView) -> bool:
    """Return True if a job belongs to the answer of a query."""
    part = query.name.casefold()
    sweep, slash, _ = view.name.partition("/")
    return (
        (not query.state or view.state in query.state.split(","))
        and (not part or part in view.name.casefold() or part in view.label.casefold())
        and query.recipe in ("", view.recipe)
        and query.machine in ("", view.machine)
        and query.submitter in ("", view.submitter)
        and (not query.sweep or (bool(slash) and sweep == query.sweep))
    )


def _states(text: str) -> str:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in _STATES:
            raise Usage(f"unknown state {name!r}: {did_you_mean(name, _STATES) or ', '.join(_STATES)}", hint=_EXAMPLE)
    return ",".join(names)
