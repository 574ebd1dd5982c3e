"""Memory before a start: may this stage begin now, and where is its cap; after its end: how much it took.

The decision is `hardware.admission`'s. Here it is asked about stages: with what a node declares, what the machine has,
and what the same configuration took when it ran before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from stoker.hardware.admission import Admitted, Memory, NotNow, TooLarge, admit
from stoker.host.entry_points import entry_point
from stoker.model.digests import Digest, digest_value
from stoker.model.errors import StokerError
from stoker.model.resources import GIB
from stoker.model.units import format_size
from stoker.plan.action import Action
from stoker.plan.footprints import Footprints
from stoker.plan.graph import Node
from stoker.plan.runner import Usage


class MemoryGate:
    """Asks about memory for the stages of one run."""

    def __init__(self, memory: Callable[[], Memory], footprints: Footprints, peaks: str = "") -> None:
        self._memory = memory
        self._peaks = peaks
        """Where the book of what companies took lies; empty: there is none."""
        self._footprints = footprints
        self._first: Memory | None = None

    def never(self, node: Node) -> str:
        """Return why a node can never start here, or an empty text."""
        if not node.needs.memory_bytes:
            return ""
        answer = admit(node.needs.memory_bytes, self._whole())
        return answer.why if isinstance(answer, TooLarge) else ""

    def ask(
        self, node: Node, action: Action, *, is_work_running: bool, company: str = "", joins: bool = False
    ) -> Admitted | TooLarge | NotNow:
        """Decide about one start. What runs inline has no memory of its own to cap.

        A member that `joins` others needs no base of its own. How many will be in a company nobody knows when it
        begins, so its cap is all above the floor.
        """
        if node.stage.inline:
            return Admitted(cap_bytes=None, why="it runs in the engine's own process")
        need_bytes = node.needs.memory_bytes
        if not need_bytes:
            return admit(None, self._whole())
        if company:
            own_bytes = max(0, need_bytes - node.needs.base_memory_bytes) if joins else need_bytes
            answer = admit(own_bytes, self._memory(), is_work_running=is_work_running)
            return admit(None, self._whole()) if isinstance(answer, Admitted) else answer
        known = self._footprints.known(configuration_of(action))
        killed_at = known.killed_at_bytes if known else None
        return admit(need_bytes, self._memory(), is_work_running=is_work_running, killed_at_bytes=killed_at)

    def short_of_base(self, node: Node) -> str:
        """Say why a member has no room now if it brings its base along, or give an empty text."""
        answer = admit(node.needs.memory_bytes, self._memory())
        return "" if isinstance(answer, Admitted) else answer.why

    def note(
        self,
        node: Node,
        action: Action,
        usage: Usage,
        *,
        cap_bytes: int | None,
        peak_gpu_bytes: int | None = None,
    ) -> None:
        """Remember what a stage took. Only a kill at its cap lets the next attempt have more."""
        if peak_gpu_bytes:
            self._footprints.note_gpu(configuration_of(action), peak_gpu_bytes)
        if not node.stage.inline and (usage.peak_rss_bytes is not None or usage.was_killed_for_memory):
            self._footprints.note(
                configuration_of(action),
                peak_bytes=usage.peak_rss_bytes,
                was_out_of_memory=usage.was_killed_for_memory,
                cap_bytes=cap_bytes,
            )

    def note_company(self, node: Node, *, promised_bytes: int, took_bytes: int) -> None:
        """Remember what members of a company took of a device beside their base, for the next estimate of their kind.

        Half as much again as was promised was no whole company: others came and went, and left memory behind. Less
        than was foretold teaches nothing: their data may have been shorter than the next ones'.
        """
        needs = node.needs
        is_sound = 0 < 2 * took_bytes < 3 * promised_bytes
        if not self._peaks or not needs.peaks or not is_sound:
            return
        from stoker.hardware.estimate.calibration import CalibrationBook  # noqa: PLC0415 - milliseconds that a cached run never needs

        foretold_bytes = max(1, round(promised_bytes * 100 / needs.foretold_percent))
        # A book that can't be written costs nothing but what it would have taught.
        with suppress(StokerError):
            measured_bytes = max(took_bytes, foretold_bytes)
            book = CalibrationBook(self._peaks)
            book.note_under(needs.peaks, measured_bytes=measured_bytes, foretold_bytes=foretold_bytes)

    def advice_to_share(self, node: Node, action: Action) -> str:
        """Say how work that waits for whole devices could have a part of one instead, from what it took before."""
        known = None if node.needs.shares else self._footprints.known_gpu(configuration_of(action))
        if known is None or not node.stage.is_program:
            return ""
        # A tenth more than ever seen: what it takes next time is not exactly what it took.
        part_gib = max(1, -(-known * 11 // (10 * GIB)))
        took = f"it took {format_size(known)} of one so far"
        return f"{took}, so with vram={part_gib}G shares=true it could run beside others that share"

    def _whole(self) -> Memory:
        """What the machine has at all does not change: looked up once."""
        if self._first is None:
            self._first = self._memory()
        return self._first


def hint_of_less(node: Node, short: TooLarge | NotNow) -> str:
    """Say what to do about a stage for which there is too little memory now: in its own words, if it has some."""
    if node.stage.is_program:
        return "close what holds memory, or declare less (memory=)"
    fitting, together = "", node.stage.together
    if together is not None and together.fits and isinstance(short, NotNow):
        # A hint that can't be given must not hide what happened.
        with suppress(StokerError):
            fitting = entry_point(together.fits)(node.stage.args.make(node.args), short.room_bytes)
    return f"close what holds memory, or ask less of it: {fitting or 'a smaller batch, say'}"


def configuration_of(action: Action) -> Digest:
    """Name a configuration: a stage with its arguments, whatever its inputs and its code are."""
    return digest_value("configuration", [action.facts.stage, dict(action.args)])
