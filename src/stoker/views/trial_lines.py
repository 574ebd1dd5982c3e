"""Trials as lines, named by their varied settings; and adapters that share a process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.display_width import filled, text_width
from stoker.core.frozen import fresh, frozen
from stoker.core.text import counted, format_size
from stoker.engine.metrics.metric_names import known_direction, preference
from stoker.engine.plan import Plan
from stoker.jobs.trials import ComparableTrials, Trial, TrialEnd, is_sweep, on_grounds, shared_nodes
from stoker.views.stage_lines import memory_text, metrics_text, number
from stoker.views.text_tables import Signs, ground_text, ground_value, near_path, span, table, with_signs

if TYPE_CHECKING:
    from stoker.devices.estimate.shared_base import MultiAdapterEstimate, MultiAdapterTraining
    from stoker.devices.estimate.terms import EstimateTerm, SmallerOption
    from stoker.jobs.adapter_jobs import SharedProcessEstimate
    from stoker.jobs.trial_watch import TrialRanking


_METRICS_OF_MEMBERS = 2


@frozen
class Titles:
    """The names of a plan's nodes on the screen."""

    names: Mapping[str, str] = fresh(factory=dict)
    """By node."""
    of_trials: frozenset[str] = frozenset()
    """Nodes that belong to one trial: the trial's end is shown instead of theirs."""
    width: int = 0
    job: str = ""
    """The job's name, for the command that shows a log."""
    together: frozenset[str] = frozenset()
    """Nodes that share a process."""
    trials: int = 0


_WIDEST = 40


def titles_of(plan: Plan, trials: Sequence[Trial], *, job: str = "", is_solo: bool = False) -> Titles:
    """Return the names of a plan's nodes."""
    together = frozenset(node.id for node in plan.nodes if node.stage.together and not is_solo)
    if not is_sweep(trials):
        plain = [f"{node.id}[0]" if node.fans_out else node.id for node in plan.nodes]
        width = min(_WIDEST, max(map(text_width, plain), default=0))
        return Titles(width=width, job=job, together=together)
    shared = shared_nodes(trials)
    names: dict[str, str] = {}
    for trial in trials:
        own = [node for node in trial.nodes.nodes if node not in shared]
        for node in own:
            stage = node.removeprefix(f"{trial.spec.number}.")
            names[node] = trial.spec.label if len(own) == 1 else f"{trial.spec.label} {stage}"
    widest = max((text_width(trial.spec.label) for trial in trials), default=0)
    return Titles(
        names=names,
        of_trials=frozenset(names),
        width=min(_WIDEST, widest),
        job=job,
        together=together,
        trials=len(trials),
    )


def trial_text(fields: Mapping[str, Any], titles: Titles, near: str, *, others: int = 0) -> str:
    """Return the end of a trial: label, time and details; `others` continue beside one that diverged."""
    width = titles.width
    label = filled(str(fields.get("label", "")), width)
    seconds = fields.get("seconds")
    took = f"{span(seconds) if isinstance(seconds, int | float) else '':>6}"
    if fields.get("state") == "failed":
        log = f"  hint: stoker logs {titles.job}/{fields.get('trial')}" if titles.job else ""
        alone = unaffected_text(others) if fields.get("cause") == "diverged" else ""
        return f"{label}  {took}  {fields.get('message') or fields.get('cause')}{alone}{log}"
    if fields.get("state") != "completed":
        return f"{label}  {took}  {fields.get('state')}"
    metrics = _shown(fields.get("metrics"))
    if titles.together:
        # The ranking metric comes first; memory is shown for the whole shared process.
        metrics = {name: metrics[name] for name in sorted(metrics, key=preference) if known_direction(name)}
        metrics = dict(list(metrics.items())[:_METRICS_OF_MEMBERS])
    shown = [text] if (text := metrics_text(metrics)) else []
    memory = memory_text(fields.get("peak_bytes"), fields.get("peak_gpu_bytes"))
    shown += [f"peak {memory}"] if memory else []
    if fields.get("is_kept"):
        shown.append("kept")
    if fields.get("out"):
        shown.append(f"→ {near_path(str(fields['out']), near)}")
    return "  ".join([label, took, *shown])


def _shown(metrics: Any) -> Mapping[str, Any]:
    return metrics if isinstance(metrics, Mapping) else {}


# Adapters that share a process, as lines: estimate, progress, ranking and memory.


_SPEED = "tokens_per_s"
_THOUSAND = 1000
_MOST_RANKED = 20


def forecast_lines(one: SharedProcessEstimate, signs: Signs) -> tuple[str, ...]:
    """Return which base adapters share, and the estimate of their process."""
    return (*([with_signs(one.about, signs)] if one.about else []), forecast_text(one))


def forecast_text(one: SharedProcessEstimate) -> str:
    """Return the estimate of one shared process."""
    adapters = "1 adapter" if one.members == 1 else f"{one.members:,} adapters, one base"
    free = "" if one.free_bytes is None else f", {format_size(one.free_bytes)} free"
    where = "" if one.members == 1 else ", one process"
    text = f"{adapters}{where}: predicted {format_size(one.predicted_bytes)}{free}"
    if one.free_bytes is not None and one.predicted_bytes > one.free_bytes:
        return f"{text}: more than is free"
    return text if one.members == 1 else f"{text}, {_pace(one)}"


def _pace(one: SharedProcessEstimate) -> str:
    passes = _passes_text(one.in_pass)
    if one.at_once == one.members:
        return f"{'both' if one.members == 2 else f'all {one.members}'} at once{passes}"
    together = "one at a time" if one.at_once == 1 else f"{one.at_once} at once{passes}"
    return f"{together}, the rest as memory is freed"


def _passes_text(in_pass: int) -> str:
    """Return how many members a pass has, if not all of them."""
    return f", {in_pass} in a pass" if in_pass else ""


def speed_text(tokens_per_s: float) -> str:
    """Return a speed of training: `31 k tokens/s`."""
    if tokens_per_s < 10 * _THOUSAND:
        return f"{tokens_per_s:,.0f} tokens/s"
    return f"{tokens_per_s / _THOUSAND:,.3g} k tokens/s"


class Speed:
    """The total speed of the members of a shared process."""

    def __init__(self) -> None:
        self._now: dict[str, float] = {}
        self._reported_s = 0.0
        self._worked_s = 0.0
        self._tokens = 0.0

    def hear(self, member: str, metrics: Mapping[str, Any], at_s: float) -> None:
        """Record a member's metrics."""
        speed = metrics.get(_SPEED)
        if isinstance(speed, int | float) and math.isfinite(speed):
            self._pass(at_s)
            self._now[member] = float(speed)

    def leave(self, member: str, at_s: float) -> None:
        """Remove a member that has ended."""
        if member in self._now:
            self._pass(at_s)
            del self._now[member]

    @property
    def members(self) -> int:
        """Number of running members."""
        return len(self._now)

    @property
    def now(self) -> float:
        """Current tokens per second of all members."""
        return sum(self._now.values())

    @property
    def mean(self) -> float:
        """Mean tokens per second while any member ran."""
        return self._tokens / self._worked_s if self._worked_s > 0 else self.now

    def _pass(self, at_s: float) -> None:
        passed_s = max(0.0, at_s - self._reported_s) if self._now else 0.0
        self._worked_s += passed_s
        self._tokens += passed_s * self.now
        self._reported_s = at_s


@frozen
class SharedProcessRunView:
    """The trials of a run that share a process."""

    lines: tuple[str, ...] = ()
    """The estimate."""
    is_solo: bool = False
    """True with `--solo`: each trial has its own process."""
    speed: Speed = fresh(factory=Speed)


def shared_speed_text(speed: Speed, width: int) -> str:
    """Return the current speed of a shared process."""
    return f"{f'{speed.members} together':<{width}}  {speed_text(speed.now)}"


def ranking_lines(ranked: TrialRanking, near: str) -> list[str]:
    """Return the completed trials, best first, each with its place among comparable trials.

    Empty if no two are comparable. Paths are relative to the folder `near`.
    """
    grounds, metric, total = ranked.grounds, ranked.measure.metric, len(ranked.standings)
    if len(grounds) == total:
        return []
    shown = [(ground, place, one) for ground in grounds for place, one in enumerate(ground.trials, 1)][:_MOST_RANKED]
    width = max(text_width(one.end.trial.spec.label) for _, _, one in shown)
    digits = len(str(max(place for _, place, _ in shown)))
    lines = []
    for ground, place, one in shown:
        if place == 1 and ground.told_by:
            lines.append(f"{ground_text(ground.told_by, near)}:")
        value = one.metrics.get(metric)
        texts = "" if value is None else f"{metric} {number(value)}"
        lines.append(f"{place:>{digits}} {filled(one.end.trial.spec.label, width)}  {texts}".rstrip())
    if total > len(shown):
        lines.append(f"  and {total - len(shown):,} more")
    return lines


def unaffected_text(others: int) -> str:
    """Return the note that a failure did not affect the others."""
    return "" if not others else ", the other one unaffected" if others == 1 else f", the other {others} unaffected"


def end_text(ends: Sequence[TrialEnd], total: int, elapsed_s: float, tokens_per_s: float) -> str:
    """Return completed members, time, speed and peak memory as one line."""
    done = sum(end.state == "completed" for end in ends)
    texts = [f"{done} of {total} in {span(elapsed_s)}"]
    if tokens_per_s:
        texts.append(speed_text(tokens_per_s))
    on_device = max((end.peak_gpu_bytes or 0 for end in ends), default=0)
    peak = on_device or max((end.peak_bytes or 0 for end in ends), default=0)
    if peak:
        texts.append(f"peak {format_size(peak)}{' GPU' if on_device else ''}")
    return ", ".join(texts)


# Adapters by their best checkpoints: ascending by validation loss, or by average loss without validation.
#
# Losses on different data are not comparable: each adapter is ranked among those with the same data and settings.


@frozen
class AdapterLeaderboardEntry:
    """An adapter with a best checkpoint."""

    n: int
    """Its number over all files."""
    label: str
    file: str
    """The adapters file that names it."""
    checkpoint: str
    """The folder of the checkpoint."""
    measured_on: Mapping[str, Any]
    """The settings that its losses depend on: `data`, a path or the name of a bundled dataset, and more."""
    epoch: int
    train_loss: float | None
    val_loss: float | None
    avg_loss: float | None
    rank: int
    alpha: float
    global_step: int

    @property
    def loss(self) -> float | None:
        """The loss to rank by."""
        return self.val_loss if self.val_loss is not None else self.avg_loss


@frozen
class AdapterLeaderboardRow:
    """An adapter with its places, from 1."""

    entry: AdapterLeaderboardEntry
    place: int
    """Place by loss over all data."""
    place_on_data: int
    """Place among adapters with the same data and settings."""


def ranked(entries: Sequence[AdapterLeaderboardEntry]) -> list[AdapterLeaderboardRow]:
    """Return entries by loss; those without a finite loss last."""
    places = {entry.n: place for ground in grounds_of(entries) for place, entry in enumerate(ground.trials, 1)}
    return [
        AdapterLeaderboardRow(entry=entry, place=place, place_on_data=places[entry.n])
        for place, entry in enumerate(sorted(entries, key=_place), 1)
    ]


def grounds_of(entries: Sequence[AdapterLeaderboardEntry]) -> list[ComparableTrials[AdapterLeaderboardEntry]]:
    """Group entries with comparable losses, best first."""
    ordered = sorted(entries, key=_place)
    return on_grounds(ordered, [entry for entry in ordered if entry.loss is not None])


def row_as_json(row: AdapterLeaderboardRow) -> dict[str, Any]:
    """Return a row as plain data; `rank` is the adapter's own."""
    entry = row.entry
    return {
        "place": row.place,
        "place_on_data": row.place_on_data,
        "label": entry.label,
        "val_loss": entry.val_loss,
        "train_loss": entry.train_loss,
        "avg_loss": entry.avg_loss,
        "epoch": entry.epoch,
        "rank": entry.rank,
        "alpha": entry.alpha,
        "global_step": entry.global_step,
        "file": entry.file,
        "checkpoint": entry.checkpoint,
        "data": entry.measured_on["data"],
        "measured_on": dict(entry.measured_on),
    }


def board_lines(rows: Sequence[AdapterLeaderboardRow], columns: int, *, names_files: bool, near: str) -> list[str]:
    """Return a leaderboard as lines, with the distinguishing settings; paths are relative to the folder `near`."""
    grounds = grounds_of([row.entry for row in rows])
    apart = list(grounds[0].told_by) if grounds else []
    losses = ["val loss", "train loss"]
    header = ["", "adapter", *apart, *losses, "epoch", "rank", "alpha", "step", *(["file"] * names_files)]
    body = [
        [
            str(row.place_on_data),
            one.label,
            *(ground_value(one.measured_on[name], near) if name in one.measured_on else "–" for name in apart),
            _loss(one),
            "" if one.train_loss is None else number(one.train_loss),
            str(one.epoch),
            str(one.rank),
            number(one.alpha),
            f"{one.global_step:,}",
            *([one.file] * names_files),
        ]
        for row in rows
        for one in [row.entry]
    ]
    return list(table(body, header=header, columns=columns))


def _place(entry: AdapterLeaderboardEntry) -> tuple[bool, float, str]:
    loss = entry.loss
    is_number = loss is not None and math.isfinite(loss)
    return not is_number, loss if is_number and loss is not None else 0.0, entry.label


def _loss(entry: AdapterLeaderboardEntry) -> str:
    if entry.val_loss is not None:
        return number(entry.val_loss)
    return "" if entry.avg_loss is None else f"{number(entry.avg_loss)} (average)"


# The memory of adapters in one process.


@frozen
class SharedProcessFitView:
    """How many members of a shared process fit on one device."""

    name: str
    uuid: str
    at_once: int
    room_bytes: int | None
    """Free memory; None if unknown."""
    why: str
    would_fit: tuple[SmallerOption, ...] = ()
    """Changes with which all of them fit."""
    in_pass: int = 0
    """Maximum number of members in one pass; 0: all that fit."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "at_once": self.at_once,
            "in_pass": self.in_pass or self.at_once,
            "room_bytes": self.room_bytes,
            "why": self.why,
            "would_fit": [{"change": one.change, "total_bytes": one.total_bytes} for one in self.would_fit],
        }


def multi_adapter_lines(
    training: MultiAdapterTraining,
    estimate: MultiAdapterEstimate,
    places: list[SharedProcessFitView],
    *,
    columns: int = 0,
) -> list[str]:
    """Lay an estimate out."""
    shape, count = training.shape, estimate.adapters
    each = "adapter parameters trained" if count == 1 else f"trained by each of {count} adapters"
    needs = estimate.needs
    base = [["base, once", "", ""], *map(_row, estimate.base), ["  sum", format_size(needs.base_bytes), ""]]
    member = [
        ["each adapter", "", ""],
        *map(_row, estimate.member),
        ["  sum", format_size(needs.member_bytes), ""],
    ]
    adapters = counted(count, "adapter")
    rows = [*base, *member, ["total", format_size(estimate.total_bytes), f"{adapters} over one base, in one process"]]
    widest = max(len(row[1]) for row in rows)
    return [
        f"{shape.family}, {estimate.parameters:,} parameters, {estimate.trained_parameters:,} {each}",
        *table([[name, size.rjust(widest), why] for name, size, why in rows], columns=columns, indent="  "),
        *(line for one in places for line in _fit_lines(one, count)),
    ]


def _row(term: EstimateTerm) -> list[str]:
    return [f"  {term.name}", format_size(term.size_bytes), term.why]


def _fit_lines(place: SharedProcessFitView, wanted: int) -> list[str]:
    if place.room_bytes is None:
        return [f"{place.name}: {place.why}"]
    every = "fits" if wanted == 1 else f"all {wanted} fit at once{_passes_text(place.in_pass)}"
    fits = every if place.at_once else "none fits"
    if 0 < place.at_once < wanted:
        fits = f"{place.at_once} of {wanted} fit at once, the rest after them"
    hint = [f"  would fit: {'; '.join(map(str, place.would_fit))}"] if place.would_fit else []
    return [f"{place.name}: {fits}; {place.why}", *hint]
