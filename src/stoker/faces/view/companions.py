"""With whom the stages of a job shared a process, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.plan.stays import Stay, read_stay
from stoker.worker.story import NodeStory

_MOST_NAMED = 4


def companions_text(node: NodeStory) -> str:
    """Say with whom a stage shared a process, and how many sat there at once; nothing of one that was alone."""
    stay = read_stay(node.company)
    if stay is None or not stay.others:
        return ""
    others = "1 other" if stay.others == 1 else f"{stay.others} others"
    return f"in one process with {others}, {stay.members} at once: {_named(stay.named, stay.others)}"


def companies_lines(job: str, nodes: Iterable[NodeStory]) -> list[str]:
    """Say how many stages of a job shared each process, and who else was in it; nothing where each was alone."""
    processes: dict[int, list[tuple[NodeStory, Stay]]] = {}
    for node in nodes:
        stay = read_stay(node.company)
        if stay is not None and stay.others:
            processes.setdefault(stay.process, []).append((node, stay))
    return [_line(job, stays) for stays in processes.values()]


def _line(job: str, stays: list[tuple[NodeStory, Stay]]) -> str:
    if len(stays) == 1:
        return f"{stays[0][0].node}: {companions_text(stays[0][0])}"
    ours = {f"{job}/{node.node}" for node, _ in stays}
    named = tuple(dict.fromkeys(name for _, stay in stays for name in stay.named if name not in ours))
    told = f"{len(stays)} in one process, {max(stay.members for _, stay in stays)} at once"
    return f"{told}, beside {_named(named, len(named))}" if named else told


def _named(names: tuple[str, ...], count: int) -> str:
    shown = names[:_MOST_NAMED]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
