"""Turns at long work: some at once, few of one client, and few that wait."""

from __future__ import annotations

import asyncio

import pytest

from stoker.coordinator.http.turns import Turns
from stoker.core.errors import RateLimited, Unavailable


class Crowd:
    """Clients that hold their turn until they are told to go."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.inside: list[str] = []
        self.go = asyncio.Event()

    async def come(self, owner: str) -> asyncio.Task[None]:
        async def hold() -> None:
            async with self.turns.of(owner):
                self.inside.append(owner)
                await self.go.wait()
                self.inside.remove(owner)

        task = asyncio.ensure_future(hold())
        for _ in range(5):
            await asyncio.sleep(0)
        return task


def test_one_client_has_few_and_does_not_keep_others_out():
    async def act() -> None:
        crowd = Crowd(Turns("simulations", of_one=2, most=4))
        first = [await crowd.come("anna") for _ in range(3)]
        assert crowd.inside == ["anna"]
        with pytest.raises(RateLimited, match="2 simulations of yours") as refused:
            await first[2]
        assert refused.value.data["retry_after_s"] == 5
        others = [await crowd.come(name) for name in ("ben", "cleo", "dora")]
        with pytest.raises(Unavailable, match="4 simulations of all users"):
            await others[2]
        crowd.go.set()
        await asyncio.gather(*first[:2], *others[:2])
        async with crowd.turns.of("dora"):
            assert crowd.inside == []

    asyncio.run(act())


def test_who_leaves_or_waits_too_long_gives_its_place_back():
    async def act() -> None:
        crowd = Crowd(Turns("checks", of_one=1, most=2, wait_s=0.02))
        holder, leaver = await crowd.come("anna"), await crowd.come("ben")
        leaver.cancel()
        late = await crowd.come("ben")
        with pytest.raises(Unavailable, match="2 checks of all users"):
            await late
        holder.cancel()
        await asyncio.wait([holder])
        crowd.go.set()
        await (await crowd.come("anna"))

    asyncio.run(act())
