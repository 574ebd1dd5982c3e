"""Memory before a start: may this stage begin now, and where is its cap; after its end: how much it took.

The decision is `hardware.admission`'s. Here it is asked about stages: with what a node declares, what the machine has,
and what the same configuration took when it ran before.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.hardware.admission import Admitted, Memory, NotNow, TooLarge, admit
from stoker.model.digests import Digest, digest_value
from stoker.model.resources import GIB
from stoker.model.units import format_size
from stoker.plan.action import Action
from stoker.plan.footprints import Footprints
from stoker.plan.graph import Node
from stoker.plan.runner import Usage


class MemoryGate:
    """Asks about memory for the stages of one run."""

    def __init__(self, memory: Callable[[], Memory], footprints: Footprints) -> None:
        self._memory = memory
        self._footprints = footprints
        self._first: Memory | None = None

    def never(self, node: Node) -> str:
        """Say why a node can never start here, or give an empty text."""
        answer = admit(node.needs.memory_bytes, self._whole())
        return answer.why if isinstance(answer, TooLarge) else ""

    def ask(self, node: Node, action: Action, *, is_work_running: bool) -> Admitted | TooLarge | NotNow:
        """Decide about one start. What runs inline has no memory of its own to cap."""
        if node.stage.inline:
            return Admitted(cap_bytes=None, why="it runs in the engine's own process")
        need_bytes = node.needs.memory_bytes
        if not need_bytes:
            return admit(None, self._whole())
        known = self._footprints.known(configuration_of(action))
        killed_at = known.killed_at_bytes if known else None
        return admit(need_bytes, self._memory(), is_work_running=is_work_running, killed_at_bytes=killed_at)

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


def configuration_of(action: Action) -> Digest:
    """Name a configuration: a stage with its arguments, whatever its inputs and its code are."""
    return digest_value("configuration", [action.facts.stage, dict(action.args)])
