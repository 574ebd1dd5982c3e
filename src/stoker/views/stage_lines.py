"""A stage of a run as one line: while it runs, and after it has ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stoker.core.display_width import filled
from stoker.core.text import counted, format_size, outside
from stoker.engine.metrics.metric_names import known_direction, preference
from stoker.jobs.job_history import NodeHistory
from stoker.views.text_tables import Signs, span

if TYPE_CHECKING:
    from stoker.engine.runners.stage_runner import MemberUsage

_METRICS_SHOWN = 3
_SCHEDULED = frozenset({"lr", "learning_rate"})
_LONG_ENOUGH_S = 1.0


def sign_of(node: NodeHistory, signs: Signs) -> str:
    """Return the sign of a stage's end."""
    return {"ran": signs.ran, "hit": signs.hit, "failed": signs.failed, "diverged": signs.failed}.get(
        node.ending, signs.left
    )


def finished_text(node: NodeHistory, width: int, *, is_message_shown: bool = False) -> str:
    """Return the end of a stage: name, time, ending and details; without its message if `is_message_shown` already."""
    took = span(node.seconds) if node.ending in ("ran", "failed", "diverged") else ""
    word = node.ending
    if node.ending in ("failed", "diverged", "pruned") and node.message:
        word = f"{'skipped' if node.ending == 'pruned' else node.ending}: {_in_one_line(node.message)}"
    message = "" if is_message_shown else outside(node.status_text)
    texts = [message, metrics_text(node.metrics), _peak_on_devices(node)] if node.ending == "ran" else []
    more = "  ".join(filter(None, texts))
    return f"{filled(node.title or node.node, width)}  {took:>6}  {word}{f'  {more}' if more else ''}"


def memory_text(ram_bytes: int | None, gpu_bytes: int | None) -> str:
    """Return the peak memory of a machine, and of its devices if it has any."""
    ram = format_size(ram_bytes) if ram_bytes else ""
    if gpu_bytes:
        return f"{format_size(gpu_bytes)} GPU{f', {ram} RAM' if ram else ''}"
    return ram


class StageStepRate:
    """The speed of a stage since its first reported step: it may have resumed from a checkpoint."""

    def __init__(self, step: int, at_s: float) -> None:
        self._first = self._last = (step, at_s)

    def hear(self, step: int, at_s: float) -> None:
        """Record a step."""
        self._last = (step, at_s)

    def steps_per_s(self) -> float | None:
        """Return the speed, or None if too little was reported."""
        steps, passed_s = self._last[0] - self._first[0], self._last[1] - self._first[1]
        return steps / passed_s if steps > 0 and passed_s >= _LONG_ENOUGH_S else None


def running_text(node: NodeHistory, width: int, now_s: float, pace: StageStepRate | None = None) -> str:
    """Return the progress of a stage: name, time, step, metrics, speed and remaining time."""
    passed_s = now_s - node.began_s if node.began_s is not None else 0.0
    parts = [
        filled(node.title or node.node, width),
        f"{span(max(0.0, passed_s)):>6}",
        step_text(node),
        metrics_text(node.metrics, is_over=False),
        pace_text(node, pace.steps_per_s() if pace else None),
    ]
    return "  ".join(part for part in parts if part)


def waiting_text(node: NodeHistory, width: int, now_s: float) -> str:
    """Return how long a stage has been waiting, and for what."""
    waited_s = max(0.0, now_s - (node.waits_since_s or now_s))
    return f"{filled(node.title or node.node, width)}  {span(waited_s):>6}  {node.waits_for}"


def step_text(node: NodeHistory) -> str:
    """Return the step of a stage."""
    if node.step is None:
        return ""
    return f"step {node.step}/{node.of}" if node.of else f"step {node.step}"


def pace_text(node: NodeHistory, steps_per_s: float | None) -> str:
    """Return the speed of a stage and its remaining time."""
    if steps_per_s is None:
        return ""
    speed = f"{steps_per_s:.3g} step/s"
    if node.of is None or node.step is None or node.step > node.of:
        return speed
    return f"{speed}  ETA {span((node.of - node.step) / steps_per_s)}"


def metrics_text(metrics: Mapping[str, Any], *, is_over: bool = True) -> str:
    """Return the first few metrics as text."""
    return "  ".join(f"{name} {number(value)}" for name, value in few_metrics(metrics, is_over=is_over).items())


def few_metrics(metrics: Mapping[str, Any], *, is_over: bool = True) -> dict[str, Any]:
    """Return the first few metrics, including the one that results are ranked by."""
    if is_over:
        # The last value of a schedule is not the learning rate that was set.
        metrics = {name: value for name, value in metrics.items() if name not in _SCHEDULED}
    few = dict(list(metrics.items())[:_METRICS_SHOWN])
    best = min(metrics, key=preference, default="")
    if best in few or known_direction(best) is None:
        return few
    return {**dict(list(few.items())[:-1]), best: metrics[best]}


def number(value: object) -> str:
    """Return a number with 4 significant digits."""
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return f"{value:.4g}"
    if isinstance(value, float) and math.isfinite(value):
        # Minus zero is shown as zero.
        return f"{value + 0.0:g}"
    return str(value)


def _in_one_line(message: str) -> str:
    """Return the first line of a message and its first item; the end of the run shows all."""
    # Colours of a program would colour what follows.
    first, *listed = map(outside, message.splitlines())
    return f"{first} {listed[0]}{' …' if len(listed) > 1 else ''}" if listed else first


def _peak_on_devices(node: NodeHistory) -> str:
    return f"peak {memory_text(node.peak_rss_bytes, node.peak_gpu_bytes)}" if node.peak_gpu_bytes else ""


# Which stages of a job shared a process.

_MOST_NAMED = 4


def companions_text(node: NodeHistory) -> str:
    """Return the other members of a stage's shared process; "" if there were none."""
    if node.member_usage is None:
        return ""
    from stoker.engine.runners.stage_runner import read_member_usage

    usage = read_member_usage(node.member_usage)
    if usage is None or not usage.others:
        return ""
    others = counted(usage.others, "other")
    return f"in one process with {others}, {usage.members} at once: {_named(usage.named, usage.others)}"


def shared_process_lines(job: str, nodes: Iterable[NodeHistory]) -> list[str]:
    """Return a line for each shared process of a job's stages."""
    from stoker.engine.runners.stage_runner import read_member_usage

    processes: dict[int, list[tuple[NodeHistory, MemberUsage]]] = {}
    for node in nodes:
        usage = read_member_usage(node.member_usage)
        if usage is not None and usage.others:
            processes.setdefault(usage.process, []).append((node, usage))
    return [_line(job, usages) for usages in processes.values()]


def _line(job: str, usages: list[tuple[NodeHistory, MemberUsage]]) -> str:
    if len(usages) == 1:
        return f"{usages[0][0].node}: {companions_text(usages[0][0])}"
    ours = {f"{job}/{node.node}" for node, _ in usages}
    named = tuple(dict.fromkeys(name for _, usage in usages for name in usage.named if name not in ours))
    texts = f"{len(usages)} in one process, {max(usage.members for _, usage in usages)} at once"
    return f"{texts}, with {_named(named, len(named))}" if named else texts


def _named(names: tuple[str, ...], count: int) -> str:
    shown = names[:_MOST_NAMED]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
