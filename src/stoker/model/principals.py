"""Who asks, and what they may: roles of people, and machines under their own name."""

from __future__ import annotations

from enum import StrEnum

from stoker.model.frozen import frozen


class Role(StrEnum):
    """What somebody may do. Of people's roles each includes those before it; a worker has its own."""

    READ = "read"
    """See everything, change nothing."""
    SUBMIT = "submit"
    """Hand in jobs: whoever may, runs code on the fleet's machines."""
    OPERATE = "operate"
    """Cancel, requeue, drain, invite machines, look inside running jobs."""
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

    def may(self, wanted: Role) -> bool:
        """Say whether the role includes another one."""
        if self.role is Role.WORKER or wanted is Role.WORKER:
            return self.role is wanted
        return _PEOPLE.index(self.role) >= _PEOPLE.index(wanted)
