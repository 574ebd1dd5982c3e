"""Who asks, and what they may: roles of people, and machines under their own name."""

from __future__ import annotations

from enum import StrEnum

from stoker.model.frozen import frozen
from stoker.model.names import is_node_name


class Role(StrEnum):
    """What somebody may do. Of people's roles each includes those before it; a worker has its own."""

    READ = "read"
    """See everything, change nothing."""
    SUBMIT = "submit"
    """Hand in jobs, and change one's own: whoever may, runs code on the fleet's machines."""
    OPERATE = "operate"
    """Change other people's jobs, drain, invite machines, look inside running jobs."""
    ADMIN = "admin"
    """Tokens, people's invitations, notifications, the database."""
    WORKER = "worker"
    """A machine: claims work in its own name, and reports on that alone."""


_PEOPLE = (Role.READ, Role.SUBMIT, Role.OPERATE, Role.ADMIN)


@frozen
class Principal:
    """Who asks."""

    name: str
    """A machine's name, a token's, or who sits at the coordinator's own machine."""
    role: Role
    is_known: bool = True
    """False: neither a credential nor the kernel says who it is."""

    def may(self, wanted: Role) -> bool:
        """Say whether the role includes another one."""
        if self.role is Role.WORKER or wanted is Role.WORKER:
            return self.role is wanted
        return _PEOPLE.index(self.role) >= _PEOPLE.index(wanted)


def verified_name(recorded: str) -> str:
    """Return the verified name in the record of who did something (`ann (ann@laptop)`).

    Empty where nobody's name was verified: the operator of the coordinator's own machine.
    """
    name = recorded.partition(" (")[0]
    return name if is_node_name(name) else ""


def may_change(only_of: str | None, submitter: str) -> bool:
    """Return True if a job of this submitter may be changed by a principal that may change `only_of`'s (None: all)."""
    return only_of is None or (bool(only_of) and only_of == verified_name(submitter))
