"""A limit on guessing: so many tries at once from one address, then only as many as come back with time."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from stoker.model.errors import RateLimited
from stoker.model.frozen import frozen

_MOST_ADDRESSES = 10_000
_NETWORK_BITS = 64


@frozen
class Limit:
    """How many tries at once, and how long until one comes back."""

    burst: int
    each_s: float


def source_of(address: str) -> str:
    """Give what counts as one source: an IPv4 address, or the network of an IPv6 one, of which anybody has billions."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _NETWORK_BITS), strict=False))


class Guesses:
    """Tries by address. The longest unheard of are forgotten, at the latest when they would be whole again."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address → how many tries were spent, and when that was."""

    def check(self, address: str, now_s: float) -> None:
        """Refuse an address that has none left."""
        if self._spent and self._left(address, now_s) < 1:
            wait_s = max(1, round(self._limit.each_s))
            raise RateLimited(
                f"too many tries from {address}", hint=f"wait {wait_s} s, then try again", retry_after_s=wait_s
            )

    def spend(self, address: str, now_s: float) -> None:
        """Count a try."""
        spent = self._limit.burst - self._left(address, now_s) + 1
        self._spent[address] = (min(spent, float(self._limit.burst)), now_s)
        self._spent.move_to_end(address)
        if len(self._spent) > _MOST_ADDRESSES:
            self._spent.popitem(last=False)

    def _left(self, address: str, now_s: float) -> float:
        found = self._spent.get(address)
        if found is None:
            return float(self._limit.burst)
        spent, at_s = found
        return self._limit.burst - max(0.0, spent - (now_s - at_s) / self._limit.each_s)
