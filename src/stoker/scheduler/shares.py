"""Fair shares: how much each user has had of the fleet lately, and who goes first within a priority.

A running job uses the largest of its parts of the fleet's devices, cores and memory (its dominant share). A user's
usage is the sum of that over time, in seconds of the whole fleet, and halves every `HALF_LIFE_S`. Within a priority the
user with the smallest usage divided by weight goes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, log

from stoker.core.frozen import frozen
from stoker.core.machine import ANY_USER, UserPolicy
from stoker.scheduler.fit import PlacementShape
from stoker.scheduler.job_types import JobTypes
from stoker.scheduler.machine_index import MachineLease

HALF_LIFE_S = 24 * 3600.0
_RATE = log(2) / HALF_LIFE_S
_REBASE_S = 32 * HALF_LIFE_S
_MOST_HALF_LIVES = 512.0
"""What is longer ago counts as this long ago: powers of two have an end."""
_TOTALS_MOVED = 1.1
"""Parts of the fleet that leases use are found again when the fleet grew or shrank by this factor."""
_AHEAD_S = 600.0
"""A running job counts as if it had run so much longer, so that jobs that start together count at once."""


@frozen
class ShareView:
    """How one user stands."""

    user: str
    share: float
    """Of the recent usage of all users with running or ready jobs."""
    fair_share: float
    """What the weights give."""
    usage_s: float
    """Seconds of the whole fleet, older ones counted less."""
    jobs: int
    devices: int


def dominant_part(shape: PlacementShape, devices: int, totals: tuple[int, int, int]) -> float:
    """Return the largest of the parts of a fleet's devices, cores and bytes of RAM that a job uses on its devices."""
    return max(
        devices / max(1, totals[0]),
        shape.cores / max(1, totals[1]),
        shape.ram_bytes / max(1, totals[2]),
    )


class _User:
    __slots__ = ("devices", "jobs", "policy", "rate", "usage")

    def __init__(self, policy: UserPolicy) -> None:
        self.policy = policy
        self.usage = 0.0
        """In units that grow with time: usage × 2 ** (time / half-life). So the order of idle users never changes.

        Of what runs, the part before its start is taken off: with what `rate` makes until now it is the whole."""
        self.rate = 0.0
        """Part of the fleet that its running jobs use."""
        self.jobs = 0
        self.devices = 0


class Shares:
    """All users."""

    def __init__(self, policies: Mapping[str, UserPolicy] | None = None) -> None:
        self.policies = dict(policies or {})
        self.has_limits = _has_limits(self.policies)
        """Whether any user is limited."""
        self._users: dict[str, _User] = {}
        self._totals: tuple[int, int, int] | None = None
        """Devices, cores and bytes of RAM of the fleet by which parts of it were last found; None: no machine yet."""
        self._parts: dict[tuple[int, int], float] = {}
        """Parts of that fleet that jobs of a type use on so many devices."""
        self._zero_s = 0.0
        """The time at which a second of usage counts as one."""
        self._scaled_s, self._scaled = -inf, 0.0
        """What a second counted at the last time that was asked for, times the mean life of usage."""

    def set_policies(self, policies: Mapping[str, UserPolicy]) -> None:
        """Replace what the operator allows; the entry `*` is for users without one."""
        self.policies = dict(policies)
        self.has_limits = _has_limits(self.policies)
        for name, user in self._users.items():
            user.policy = self._policy(name)

    def charge(self, name: str, usage_s: float, at_s: float) -> None:
        """Count usage of the past that ended at a time."""
        self._rebase(at_s)
        user = self._user(name)
        user.usage += usage_s * self._scale(at_s)

    def set_totals(self, totals: tuple[int, int, int], leases: Iterable[MachineLease], now_s: float) -> None:
        """Find again which part of the fleet each lease uses, if the fleet grew or shrank."""
        if self._totals is not None and all(
            known <= total * _TOTALS_MOVED and total <= known * _TOTALS_MOVED
            for known, total in zip(self._totals, totals, strict=True)
        ):
            return
        self._totals = totals
        self._parts.clear()
        for lease in leases:
            before, lease.usage_rate = lease.usage_rate, self.part_of_fleet(lease)
            self._change(self._user(lease.user), lease.usage_rate - before, now_s)

    def start(self, name: str, rate: float, devices: int, now_s: float) -> None:
        """Count a job that uses this part of the fleet from now on."""
        user = self._user(name)
        self._change(user, rate, now_s)
        user.jobs += 1
        user.devices += devices

    def end(self, name: str, rate: float, devices: int, now_s: float) -> None:
        """Count it no more."""
        user = self._user(name)
        self._change(user, -rate, now_s)
        user.jobs -= 1
        user.devices -= devices
        if not user.jobs:
            user.rate = 0.0

    def part_of_fleet(self, lease: MachineLease) -> float:
        """Return which part of the fleet a lease uses."""
        if self._totals is None:
            return 0.0
        key = lease.type.index, len(lease.allocation.devices)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = dominant_part(lease.shape, key[1], self._totals)
        return part

    def order(self, names: Iterable[str], now_s: float) -> list[str]:
        """Return users in the order in which they are served: the one with the least usage first."""
        self._rebase(now_s)
        return sorted(names, key=lambda name: (self._key(name, now_s), name))

    def room(self, name: str) -> tuple[bool, int | None]:
        """Return whether a user may start a job at all, and on how many devices; None: any number."""
        user = self._users.get(name)
        policy = user.policy if user is not None else self._policy(name)
        jobs, devices = (user.jobs, user.devices) if user is not None else (0, 0)
        is_open = policy.most_jobs is None or jobs < policy.most_jobs
        return is_open, None if policy.most_devices is None else max(0, policy.most_devices - devices)

    def allowed(self, name: str, types: JobTypes, mask: int) -> int:
        """Return what the limits of a user leave of some job types."""
        if not self.has_limits:
            return mask
        is_open, devices = self.room(name)
        if not is_open:
            return 0
        return mask if devices is None else mask & ~types.wider_than(devices)

    def limit_reached(self, name: str, devices: int) -> str:
        """Return which limit keeps a user from starting a job on so many devices, in words; empty: none."""
        user, policy = self._users.get(name), self._policy(name)
        jobs, held = (user.jobs, user.devices) if user is not None else (0, 0)
        if policy.most_jobs is not None and jobs >= policy.most_jobs:
            return f"limit of user {name} ({_counted(policy.most_jobs, 'job')} at once)"
        if policy.most_devices is not None and devices > max(0, policy.most_devices - held):
            return f"limit of user {name} ({_counted(policy.most_devices, 'device')} at once)"
        return ""

    def is_limited(self, name: str) -> bool:
        """Return whether a limit keeps a user from starting some jobs now, or may do so."""
        is_open, devices = self.room(name)
        return not is_open or devices is not None

    def usage(self, now_s: float) -> dict[str, float]:
        """Return the usage of every user until now, in seconds of the whole fleet, older ones counted less."""
        scale = self._scale(now_s)
        return {
            name: max(0.0, user.usage / scale + user.rate / _RATE)
            for name, user in self._users.items()
            if user.usage or user.rate
        }

    def views(self, names: Iterable[str], now_s: float) -> dict[str, ShareView]:
        """Return how these users stand beside each other."""
        names = list(names)
        self._rebase(now_s)
        usage = {name: self._key(name, now_s) * self._user(name).policy.weight / self._scale(now_s) for name in names}
        whole, weights = sum(usage.values()), sum(self._user(name).policy.weight for name in names)
        return {
            name: ShareView(
                user=name,
                share=usage[name] / whole if whole else 0.0,
                fair_share=self._user(name).policy.weight / weights if weights else 0.0,
                usage_s=usage[name],
                jobs=self._user(name).jobs,
                devices=self._user(name).devices,
            )
            for name in names
        }

    def _key(self, name: str, now_s: float) -> float:
        user = self._users.get(name)
        if user is None:
            return 0.0
        usage = user.usage + user.rate * self._scale(now_s + _AHEAD_S) / _RATE if user.rate else user.usage
        return max(0.0, usage) / user.policy.weight

    def _change(self, user: _User, more: float, now_s: float) -> None:
        """Let a user's jobs use this much more of the fleet from now on."""
        if now_s != self._scaled_s:
            self._rebase(now_s)
            self._scaled_s, self._scaled = now_s, self._scale(now_s) / _RATE
        user.usage -= more * self._scaled
        user.rate += more

    def _rebase(self, now_s: float) -> None:
        """Keep the numbers small: count from now, if the time from which is counted is long ago, or a clock jumped.

        A clock that was set back far leaves usage as it is.
        """
        if abs(now_s - self._zero_s) > _REBASE_S:
            factor = max(1.0, self._scale(now_s))
            for user in self._users.values():
                user.usage /= factor
            self._zero_s = now_s
            self._scaled_s = -inf

    def shift(self, back_s: float) -> None:
        """Go on counting after the clock was set back."""
        self._zero_s -= back_s
        self._scaled_s = -inf

    def _scale(self, at_s: float) -> float:
        half_lives = (at_s - self._zero_s) / HALF_LIFE_S
        return float(2.0 ** max(-_MOST_HALF_LIVES, min(half_lives, _MOST_HALF_LIVES)))

    def _user(self, name: str) -> _User:
        user = self._users.get(name)
        if user is None:
            user = self._users[name] = _User(self._policy(name))
        return user

    def _policy(self, name: str) -> UserPolicy:
        return self.policies.get(name) or self.policies.get(ANY_USER) or UserPolicy()


def _counted(number: int | None, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _has_limits(policies: Mapping[str, UserPolicy]) -> bool:
    return any(one.most_jobs is not None or one.most_devices is not None for one in policies.values())
