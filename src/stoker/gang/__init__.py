"""Gangs: bring several ranks up together or not at all.

    from stoker.gang import Buffer, Gang, RankConfig, this_rank

    with Gang(ranks=[RankConfig(0, [Buffer("x", 1 << 20)]), RankConfig(1)], backend="gloo") as gang:
        gang.contexts
        gang.run(train)

A rank is a process forked from a warm zygote. It says what it does in a mailbox page; its owner waits for all, and ends
all when one fails. Owners on several hosts meet (`RendezvousHost`, `RendezvousClient`), and their ranks are one gang.
Not here: a gang within a rank, symmetric memory.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.gang.mailbox import Phase
    from stoker.gang.owner import Gang
    from stoker.gang.rank_config import Buffer, RankConfig
    from stoker.gang.rank_context import this_rank
    from stoker.gang.rendezvous_client import RendezvousClient
    from stoker.gang.rendezvous_host import RendezvousHost

__all__ = ["Buffer", "Gang", "Phase", "RankConfig", "RendezvousClient", "RendezvousHost", "this_rank"]

_PLACES = {
    "Buffer": "rank_config",
    "Gang": "owner",
    "RendezvousHost": "rendezvous_host",
    "RendezvousClient": "rendezvous_client",
    "Phase": "mailbox",
    "RankConfig": "rank_config",
    "this_rank": "rank_context",
}


def __getattr__(name: str) -> object:
    """Import the names above on first use: a rank needs other modules than its owner."""
    from importlib import import_module  # noqa: PLC0415 - see above

    if name not in _PLACES:
        message = f"module 'stoker.gang' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"stoker.gang.{_PLACES[name]}"), name)
