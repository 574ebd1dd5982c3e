"""Several jobs, or trials of one, beside each other: config, code, data, environment, metrics, and what differs.

What code and data a result was made from is read from its record, which holds everything that decided it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.digests import encode
from stoker.core.frozen import changed, frozen
from stoker.core.job import JobSpec
from stoker.engine.metrics.metric_names import Direction
from stoker.jobs.comparison import (
    COSTS,
    Comparison,
    Curves,
    JobFacts,
    TrialFacts,
    TrialRow,
    compare_trials,
    read_curves,
)
from stoker.jobs.program import flat
from stoker.jobs.result_origins import made_from_records
from stoker.jobs.trial_settings import MASK, JobSetting, is_secret, masked
from stoker.jobs.trials import Trial


@frozen
class ComparisonSide:
    """One of the things compared."""

    label: str
    attempt: str
    recipe: str
    state: str
    started_s: float
    settings: Mapping[str, JobSetting]
    code: Mapping[str, str]
    """Digest of each module and file that the work is made of."""
    data: Mapping[str, str]
    """Digest of each file that was read, by stage and argument."""
    environment: Mapping[str, str]
    comparison: Comparison
    """Its trials, one of which speaks for it."""
    without_result: tuple[str, ...]
    """Stages of which nothing is kept: what they were made from is not known."""

    @property
    def row(self) -> TrialRow | None:
        return self.comparison.speaker

    def curves(self) -> list[Curves]:
        """Read its curves, those of the trial that speaks for it first."""
        rows = sorted(self.comparison.rows, key=lambda row: row is not self.row)
        return read_curves(changed(self.comparison, rows=tuple(rows)))


@frozen
class Fact:
    """One thing that is compared. A value is None where a side has none."""

    section: str
    name: str
    values: tuple[Any, ...]
    origins: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        # As they would enter a key: 1, 1.0 and true are three values, and NaN equals itself.
        return len({encode(_plain(value)) for value in self.values}) == 1

    def to_json(self) -> dict[str, Any]:
        body = {"section": self.section, "name": self.name, "values": list(self.values), "is_same": self.is_same}
        return {**body, "origins": list(self.origins)} if self.origins else body


SECTIONS = ("config", "code", "data", "environment", "metrics")


def side_of(
    gathering: JobFacts,
    trial: Trial | None,
    *,
    label: str,
    by: str = "",
    direction: Direction | None = None,
    trials: Sequence[TrialFacts] | None = None,
) -> ComparisonSide:
    """Gather one side: one trial of a job, or a job, for which its best trial speaks; if none is that, its first.

    `trials` are those of the job where they are known already, such as the points of a fleet's sweep.
    """
    spec, attempt = gathering.spec, gathering.attempt
    known = gathering.trials() if trials is None else trials
    gathered = [one for one in known if trial is None or one.end.trial.spec.number == trial.spec.number]
    comparison = compare_trials(
        gathered,
        job=spec.name,
        attempt=attempt.id,
        recipe=spec.recipe,
        values={path: setting.value for path, setting in gathering.settings(trial).items()},
        by=by,
        direction=direction,
    )
    speaker = comparison.speaker
    speaking = next(one.end.trial for one in gathered if speaker is None or one.end.trial.spec.number == speaker.n)
    records = gathering.records(speaking)
    made_from = made_from_records(records.values())
    return ComparisonSide(
        label=label,
        attempt=attempt.id,
        recipe=spec.recipe,
        state=str(gathering.folder.state()[0]) if trial is None else gathered[0].end.state,
        started_s=attempt.started_s,
        settings=gathering.settings(speaking),
        code={**_code_of(spec), **_joined(made_from.code), **gathering.program_files(speaking)},
        data={**_inputs_of(spec), **_joined(made_from.data)},
        environment={
            "stoker": attempt.stoker,
            **gathering.folder.environment(),
            **_joined(made_from.environment),
        },
        comparison=comparison,
        without_result=tuple(name for name in speaking.nodes.nodes if name not in records and "[" not in name),
    )


def side_of_spec(spec: JobSpec, *, label: str, state: str) -> ComparisonSide:
    """Return the side of a job that has not run: what it was submitted with."""
    settings = {
        name: JobSetting(value=masked(spec.recipe, name, value))
        for name, value in flat({**spec.args, **spec.point}).items()
    }
    nothing = Comparison(
        job=label, attempt="", recipe=spec.recipe, rows=(), varying=(), fixed={}, metrics=(), measure=None
    )
    return ComparisonSide(
        label=label,
        attempt="",
        recipe=spec.recipe,
        state=state,
        started_s=0.0,
        settings=settings,
        code=_code_of(spec),
        data=_inputs_of(spec),
        environment={},
        comparison=nothing,
        without_result=(),
    )


def _code_of(spec: JobSpec) -> dict[str, str]:
    """Return what a submitted job says of its code."""
    commit = {"commit": spec.commit} if spec.commit else {}
    tree = {"code tree": spec.code_tree} if spec.code_tree else {}
    return {**commit, **tree, **spec.code}


def _inputs_of(spec: JobSpec) -> dict[str, str]:
    """Return the data that a submitted job brings along, by where it gets it."""
    return {one.where: one.tree or one.repo for one in spec.inputs if one.tree or one.repo}


def compare_sides(sides: Sequence[ComparisonSide]) -> list[Fact]:
    """Return every fact of every section, those that differ first within their section."""
    facts = [
        Fact(section="config", name="recipe", values=tuple(side.recipe for side in sides)),
        *_settings(sides),
        *_facts("code", [side.code for side in sides]),
        *_facts("data", [side.data for side in sides]),
        *_facts("environment", [side.environment for side in sides]),
        *_facts("metrics", [side.row.metrics if side.row else {} for side in sides], _metric_order(sides)),
        *(
            Fact(section="metrics", name=name, values=tuple(side.row and side.row.costs[name] for side in sides))
            for name in COSTS
        ),
    ]
    return [
        fact
        for section in SECTIONS
        for fact in sorted((fact for fact in facts if fact.section == section), key=_sameness)
    ]


def _settings(sides: Sequence[ComparisonSide]) -> list[Fact]:
    names = dict.fromkeys(name for side in sides for name in side.settings)
    found = []
    for name in names:
        settings = [side.settings.get(name) for side in sides]
        if any(is_secret(side.recipe, name) for side in sides):
            settings = _told_apart(settings)
        found.append(
            Fact(
                section="config",
                name=name,
                values=tuple(setting.value if setting else None for setting in settings),
                origins=tuple(setting.origin if setting else "" for setting in settings),
            )
        )
    return found


def _told_apart(settings: Sequence[JobSetting | None]) -> list[JobSetting | None]:
    """Return secrets without what they are, so that those that differ still do."""
    seen: list[bytes] = []
    found: list[JobSetting | None] = []
    for setting in settings:
        if setting is None or setting.value in ({}, None):
            found.append(setting)
            continue
        spelt = encode(_plain(setting.value))
        seen += [spelt] if spelt not in seen else []
        number = seen.index(spelt) + 1
        found.append(JobSetting(value=MASK if number == 1 else f"{MASK} ({number})"))
    return found


def _facts(section: str, tables: Sequence[Mapping[str, Any]], order: Sequence[str] = ()) -> list[Fact]:
    names = dict.fromkeys([*order, *sorted({name for table in tables for name in table})])
    return [Fact(section=section, name=name, values=tuple(table.get(name) for table in tables)) for name in names]


def _metric_order(sides: Sequence[ComparisonSide]) -> list[str]:
    return list(dict.fromkeys(name for side in sides for name in side.comparison.metrics if side.row is not None))


def _sameness(fact: Fact) -> bool:
    # Metrics stand in the order in which they matter, whether they are the same or not.
    return fact.is_same and fact.section != "metrics"


def _joined(found: Mapping[str, set[str]]) -> dict[str, str]:
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
