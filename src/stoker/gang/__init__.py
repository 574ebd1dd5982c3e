"""Gangs: bring several ranks up together or not at all.

    from stoker.gang import Buffer, Gang, RankConfig, this_rank

    with Gang(ranks=[RankConfig(0, [Buffer("x", 1 << 20)]), RankConfig(1)], backend="gloo") as gang:
        gang.contexts
        gang.run(train)

A rank is a process forked from a warm zygote. It says what it does in a mailbox page; its owner waits for all, and ends
all when one fails. Owners on several hosts meet (`HeldMeeting`, `JoinedMeeting`), and their ranks are one gang.
Not here: a gang within a rank, symmetric memory.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.gang.configs import Buffer as Buffer
    from stoker.gang.configs import RankConfig as RankConfig
    from stoker.gang.held_meeting import HeldMeeting as HeldMeeting
    from stoker.gang.inside import this_rank as this_rank
    from stoker.gang.joined_meeting import JoinedMeeting as JoinedMeeting
    from stoker.gang.owner import Gang as Gang
    from stoker.gang.states import Phase as Phase

__all__ = ["Buffer", "Gang", "HeldMeeting", "JoinedMeeting", "Phase", "RankConfig", "this_rank"]

_PLACES = {
    "Buffer": "configs",
    "Gang": "owner",
    "HeldMeeting": "held_meeting",
    "JoinedMeeting": "joined_meeting",
    "Phase": "states",
    "RankConfig": "configs",
    "this_rank": "inside",
}


def __getattr__(name: str) -> object:
    """Give the names above to whoever asks: a rank needs other modules than its owner."""
    from importlib import import_module  # noqa: PLC0415 - see above

    if name not in _PLACES:
        message = f"module 'stoker.gang' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"stoker.gang.{_PLACES[name]}"), name)
