"""Models as screens get them: adapters by base, the lowest loss first, and results with their lineage. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.core.frozen import frozen
from stoker.core.job import JobSpec, contents_of
from stoker.core.jsontext import dumps
from stoker.core.text import counted, one_line
from stoker.jobs.adapter_jobs import LORA
from stoker.protocol.screen_messages import AdapterBase, AdapterBoard, AdapterRow, LineageInput
from stoker.views.text_tables import value_text
from stoker.views.trial_lines import AdapterLeaderboardEntry, AdapterLeaderboardRow, ranked

RECIPE = LORA
"""The recipe whose jobs train adapters."""
STATES = ("completed", "running", "claimed")
"""Of jobs that are listed."""
_MEASURED_ON = ("max_seq_len", "train_on", "holdout_percent")
_OWN_COLUMNS = frozenset({
    "base", "base_name", "data", "rank", "alpha", "label", "checkpoints", "adapter_index", *_MEASURED_ON,
})  # fmt: skip
_VAL = ("eval_loss", "val_loss")
_TRAIN = ("train_loss", "loss")
_LONGEST = 200
_PARAMETERS = 12
_ADAPTERS = 500
_BASES = 100


@frozen
class AdapterFacts:
    """One job, or trial, that trains an adapter."""

    job: str
    label: str
    state: str
    args: Mapping[str, Any]
    identity: Mapping[str, Any]
    """Its arguments with digests in place of paths; empty: unknown."""
    metrics: Mapping[str, float]
    step: int | None = None
    result: str = ""


def adapter_board(adapters: Iterable[AdapterFacts], note: str = "") -> AdapterBoard:
    """Return adapters by base, the base with the most adapters first; those without a loss are last."""
    by_base: dict[str, list[AdapterFacts]] = {}
    for one in adapters:
        by_base.setdefault(_base_of(one), []).append(one)
    ordered = sorted(by_base.items(), key=lambda item: (-len(item[1]), item[0]))
    return AdapterBoard(bases=tuple(_base(base, those) for base, those in ordered[:_BASES]), note=note)


def cut_note(count: int, most: int) -> str:
    """Return the note of a board of the newest adapters only; empty if it has all."""
    return f"the newest {counted(most, 'adapter')} only" if count >= most else ""


def _base(base: str, adapters: Sequence[AdapterFacts]) -> AdapterBase:
    rows = ranked([_entry(n, one) for n, one in enumerate(adapters)])[:_ADAPTERS]
    varying = _varying(adapters)
    return AdapterBase(
        base=base, adapters=tuple(_row(row, adapters[row.entry.n], varying) for row in rows), total=len(adapters)
    )


def _entry(n: int, one: AdapterFacts) -> AdapterLeaderboardEntry:
    measured_on = {"data": _data_of(one), **{name: one.args.get(name) for name in _MEASURED_ON}}
    # Jobs of earlier versions have no method.
    measured_on["method"] = one.args.get("method", "sft")
    rank, alpha = one.args.get("rank"), one.args.get("alpha")
    return AdapterLeaderboardEntry(
        n=n,
        label=one.label or one.job,
        file=one.job,
        checkpoint=one.result,
        measured_on=measured_on,
        epoch=0,
        train_loss=_first(one.metrics, _TRAIN),
        val_loss=_first(one.metrics, _VAL),
        # Without a held-out part the training loss ranks.
        avg_loss=_first(one.metrics, _TRAIN),
        rank=rank if type(rank) is int else 0,
        alpha=float(alpha) if isinstance(alpha, int | float) else math.nan,
        global_step=one.step or 0,
    )


def _row(row: AdapterLeaderboardRow, one: AdapterFacts, varying: Sequence[str]) -> AdapterRow:
    entry = row.entry
    return AdapterRow(
        job=one.job,
        label=one.label,
        state=one.state,
        place=row.place,
        place_on_data=row.place_on_data,
        rank=entry.rank or None,
        alpha=None if math.isnan(entry.alpha) else entry.alpha,
        data=_text(one.args.get("data")),
        val_loss=entry.val_loss,
        train_loss=entry.train_loss,
        epoch=_first(one.metrics, ("epoch",)),
        step=one.step,
        result=one.result,
        parameters={name: _shown(one.args.get(name)) for name in varying},
    )


def _varying(adapters: Sequence[AdapterFacts]) -> list[str]:
    names = dict.fromkeys(name for one in adapters for name in one.args if name not in _OWN_COLUMNS)
    return [name for name in names if len({dumps(one.args.get(name)) for one in adapters}) > 1][:_PARAMETERS]


def _base_of(one: AdapterFacts) -> str:
    return _text(one.args.get("base_name") or one.args.get("base") or "?")


def _data_of(one: AdapterFacts) -> str:
    """Return the digest of the data if it is known, else its name: the same data may have several paths."""
    digests = [digest for _, digest in contents_of(one.identity.get("data"), one.args.get("data"))]
    return digests[0] if digests else str(one.args.get("data", ""))


def _first(metrics: Mapping[str, float], names: Sequence[str]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _shown(value: Any) -> Any:
    is_plain = value is None or type(value) in (bool, int, float)
    return value if is_plain else _text(value)


def _text(value: Any) -> str:
    return one_line(value_text(value), _LONGEST) if value is not None else ""


MOST_PER_PAGE = 200
_INPUTS = 100
_LONGEST_INPUT = 200


def data_of(spec: JobSpec) -> tuple[LineageInput, ...]:
    """Return the data of a job: what it brings along, and the files among its arguments; each digest once."""
    found = {one.tree or one.repo: one.name or one.where for one in spec.inputs if one.tree or one.repo}
    for name, wanted in spec.identity.items():
        for path, digest in contents_of(wanted, spec.args.get(name)):
            found.setdefault(digest, os.path.basename(path) or name)
    return inputs_of((name, digest) for digest, name in found.items())


def code_of(spec: JobSpec) -> tuple[LineageInput, ...]:
    """Return the code of a job: its tree, then the files or modules that it consists of."""
    tree = [("code tree", spec.code_tree)] if spec.code_tree else []
    return inputs_of([*tree, *spec.code.items()])


def environment_of(spec: JobSpec) -> str:
    """Return what a job's environment is made from; empty: the machine's own interpreter."""
    first = next(iter(spec.environment), None)
    return (
        ""
        if first is None
        else one_line(" ".join(filter(None, (first.kind, first.path, first.digest))), _LONGEST_INPUT)
    )


def inputs_of(pairs: Iterable[tuple[str, str]]) -> tuple[LineageInput, ...]:
    """Return names with digests; of very many the first."""
    found = [
        LineageInput(name=one_line(name, _LONGEST_INPUT), digest=one_line(digest, _LONGEST_INPUT))
        for name, digest in pairs
    ]
    return tuple(found[:_INPUTS])


def finite_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among metrics; of very many the first."""
    numbers = {str(name): float(value) for name, value in metrics.items() if type(value) in (int, float)}
    return dict(list(numbers.items())[:_INPUTS])
