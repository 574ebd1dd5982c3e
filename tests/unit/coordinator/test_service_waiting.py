from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from stoker.coordinator.http.long_poll import AT_ONCE, MOST_PER_WORKER, WaitingClaims
from stoker.protocol.lease_messages import Claim, ClaimResponse, LeaseInstruction, LeaseInstructionKind
from tests.fakes.grants import grant_of

NOTHING = ClaimResponse(generation=0)
ORDERS = ClaimResponse(generation=0, orders=(LeaseInstruction(job="j", epoch=1, do=LeaseInstructionKind.CANCEL),))
OTHERS_ONLY = ClaimResponse(generation=0, waiting={"no_device": 3})


def grant(job: str = "a" * 64) -> ClaimResponse:
    one = grant_of(job=job, attempt=1, epoch=1, generation=0, name="n", recipe="r", lease_s=90, start_s=120)
    return ClaimResponse(grants=(one,), generation=0)


def claim(number: int = 0, *, worker: str = "", wait_s: float = 30.0, most: int = 1) -> Claim:
    return Claim(
        request_id=f"request-{number}",
        worker=worker or f"w{number}",
        incarnation="incarnation-1",
        wait_s=wait_s,
        most=most,
    )


class Till:
    """A queue with some jobs; counts the questions."""

    def __init__(self, jobs: int = 0, *, otherwise: ClaimResponse = NOTHING) -> None:
        self.jobs = jobs
        self.otherwise = otherwise
        self.asked: list[str] = []
        self.requests: list[str] = []
        self.ends_in_s: list[float | None] = []
        self.turn: asyncio.Event | None = None

    async def ask(self, claim: Claim) -> ClaimResponse:
        self.asked.append(claim.worker)
        self.requests.append(claim.request_id)
        self.ends_in_s.append(claim.ends_in_s)
        has_one = self.jobs > 0
        self.jobs -= has_one
        if self.turn is not None:
            await self.turn.wait()
        await asyncio.sleep(0)
        return grant() if has_one else self.otherwise


class Claims(WaitingClaims):
    """Claims as a worker's route makes them: asked at once, then held open."""

    async def claim(self, claim: Claim, gone: Callable[[], Awaitable[None]]) -> ClaimResponse | None:
        since = self.mark()
        granted = await self._ask(claim)
        return await self.wait(claim, granted, since, gone) if self.holds(claim, granted) else granted


async def never() -> None:
    await asyncio.Event().wait()


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 20))


def test_a_claim_that_finds_something_is_answered_at_once():
    async def scene():
        waiting = Claims(Till(jobs=1).ask)
        answer = await waiting.claim(claim(), never)
        assert answer is not None
        assert len(answer.grants) == 1
        assert len(waiting) == 0

    run(scene())


def test_a_claim_that_may_not_wait_is_answered_with_nothing():
    async def scene():
        waiting = Claims(Till(otherwise=OTHERS_ONLY).ask)
        assert await waiting.claim(claim(wait_s=0), never) == OTHERS_ONLY

    run(scene())


def test_a_claim_waits_no_longer_than_it_said_and_gets_the_reasons():
    async def scene():
        waiting = Claims(Till(otherwise=OTHERS_ONLY).ask)
        assert await waiting.claim(claim(wait_s=0.01), never) == OTHERS_ONLY
        assert len(waiting) == 0

    run(scene())


def test_a_waiting_claim_is_asked_again_when_it_is_not_known_what_is_new():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        asking = asyncio.ensure_future(waiting.claim(claim(), never))
        await settled()
        assert not asking.done()
        till.jobs = 1
        waiting.stir()
        answer = await asking
        assert answer is not None
        assert answer.grants

    run(scene())


def test_a_claim_that_is_asked_again_does_not_repeat_how_long_its_machine_stays():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        asked = claim().model_copy(update={"ends_in_s": 40.0})
        holds = asyncio.create_task(waiting.claim(asked, never))
        await settled()
        till.jobs = 1
        waiting.stir()
        await holds
        assert till.ends_in_s == [40.0, None]

    run(scene())


@pytest.mark.parametrize("otherwise", [OTHERS_ONLY, NOTHING], ids=["others", "empty"])
def test_every_worker_is_asked_once_when_it_is_not_known_what_is_new(otherwise: ClaimResponse):
    async def scene():
        till = Till(otherwise=otherwise)
        waiting = Claims(till.ask)
        asking = [asyncio.ensure_future(waiting.claim(claim(number), never)) for number in range(50)]
        await settled()
        till.asked.clear()
        waiting.stir()
        for _ in range(10):
            await settled()
        assert sorted(till.asked) == sorted(f"w{number}" for number in range(50))
        waiting.close()
        await asyncio.gather(*asking)

    run(scene())


def test_many_new_jobs_reach_all_who_wait():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        asking = [asyncio.ensure_future(waiting.claim(claim(number), never)) for number in range(60)]
        await settled()
        till.jobs = 60
        waiting.stir()
        answers = await asyncio.gather(*asking)
        assert all(answer is not None and answer.grants for answer in answers)

    run(scene())


def test_news_while_a_claim_is_asked_is_not_missed():
    async def scene():
        till = Till()
        till.turn = asyncio.Event()
        waiting = Claims(till.ask)
        asking = asyncio.ensure_future(waiting.claim(claim(), never))
        await settled()
        till.jobs = 1
        waiting.stir()
        till.turn.set()
        answer = await asking
        assert answer is not None
        assert answer.grants

    run(scene())


def test_whoever_left_is_not_asked_for_again():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        left = asyncio.Event()
        asking = asyncio.ensure_future(waiting.claim(claim(), lambda: wait_for(left)))
        await settled()
        left.set()
        assert await asking is None
        till.asked.clear()
        till.jobs = 1
        waiting.stir()
        await settled()
        assert not till.asked

    async def wait_for(event: asyncio.Event) -> None:
        await event.wait()

    run(scene())


def test_a_worker_holds_few_questions_open():
    async def scene():
        waiting = Claims(Till().ask)
        asking = []
        for number in range(MOST_PER_WORKER + 3):
            asking.append(asyncio.ensure_future(waiting.claim(claim(number, worker="w"), never)))
            await settled()
        assert len(waiting) == MOST_PER_WORKER
        assert [one.done() for one in asking] == [True] * 3 + [False] * MOST_PER_WORKER
        waiting.close()
        await asyncio.gather(*asking)

    run(scene())


def test_a_repeat_takes_the_place_of_the_question_it_repeats():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        first = asyncio.ensure_future(waiting.claim(claim(), never))
        await settled()
        second = asyncio.ensure_future(waiting.claim(claim(), never))
        await settled()
        assert first.done()
        assert len(waiting) == 1
        till.jobs = 1
        waiting.stir()
        answer = await second
        assert answer is not None
        assert answer.grants

    run(scene())


def test_an_error_reaches_whoever_waits():
    async def scene():
        calls = 0

        async def ask(_claim: Claim) -> ClaimResponse:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise RuntimeError("broken")
            return NOTHING

        waiting = Claims(ask)
        asking = asyncio.ensure_future(waiting.claim(claim(), never))
        await settled()
        waiting.stir()
        with pytest.raises(RuntimeError, match="broken"):
            await asking

    run(scene())


def test_at_the_end_everybody_is_answered_and_nobody_waits_any_more():
    async def scene():
        waiting = Claims(Till(otherwise=OTHERS_ONLY).ask)
        asking = [asyncio.ensure_future(waiting.claim(claim(number), never)) for number in range(3)]
        await settled()
        waiting.close()
        assert await asyncio.gather(*asking) == [OTHERS_ONLY] * 3
        assert await waiting.claim(claim(9), never) == OTHERS_ONLY

    run(scene())


@pytest.mark.parametrize("otherwise", [OTHERS_ONLY, NOTHING], ids=["others", "empty"])
def test_only_machines_of_which_something_is_wished_ask_again(otherwise: ClaimResponse):
    async def scene():
        till = Till(otherwise=otherwise)
        waiting = Claims(till.ask)
        asking = [asyncio.ensure_future(waiting.claim(claim(number), never)) for number in range(20)]
        await settled()
        till.asked.clear()
        waiting.call(("w7", "w9", "stranger"))
        await settled()
        assert sorted(till.asked) == ["w7", "w9"]
        waiting.close()
        await asyncio.gather(*asking)

    run(scene())


def test_called_machines_ask_in_the_order_of_their_calls():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        asking = [asyncio.ensure_future(waiting.claim(claim(number), never)) for number in range(3 * AT_ONCE)]
        await settled()
        till.asked.clear()
        first = [f"w{number}" for number in (5, 3, 20, 4, 0, 11, 17, 2, 23, 9)]
        second = [f"w{number}" for number in (8, 1, 22)]
        waiting.call(first)
        waiting.call(second)
        for _ in range(5):
            await settled()
        assert till.asked == first + second
        waiting.close()
        await asyncio.gather(*asking)

    run(scene())


def test_who_only_listens_is_asked_for_when_something_is_wished_of_it_and_not_for_work():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        listening = asyncio.ensure_future(waiting.claim(claim(1, most=0), never))
        working = asyncio.ensure_future(waiting.claim(claim(2), never))
        await settled()
        assert len(waiting) == 2
        till.asked.clear()
        till.jobs = 1
        waiting.stir()
        assert (await working) == grant()
        assert till.asked == ["w2"], "what it hears says nothing about work, and work nothing to it"
        till.otherwise = ORDERS
        waiting.call(("w1",))
        assert (await listening) == ORDERS
        assert len(waiting) == 0

    run(scene())


def test_of_a_machine_that_asks_for_jobs_and_listens_only_the_first_is_asked_for():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        listening = asyncio.create_task(waiting.claim(claim(1, worker="w", most=0), never))
        asking = asyncio.create_task(waiting.claim(claim(2, worker="w"), never))
        await settled()
        till.requests.clear()
        till.jobs = 1
        waiting.call(("w",))
        answer = await asking
        assert answer is not None
        assert len(answer.grants) == 1
        await settled()
        assert till.requests == ["request-2"]
        # Now it only listens.
        till.otherwise = ORDERS
        waiting.call(("w",))
        assert await listening == ORDERS

    run(scene())


def test_a_wish_that_comes_while_it_is_asked_for_is_not_missed():
    async def scene():
        till = Till()
        till.turn = asyncio.Event()
        waiting = Claims(till.ask)
        listening = asyncio.ensure_future(waiting.claim(claim(1, most=0), never))
        await settled()
        waiting.call(("w1",))
        assert till.asked == ["w1"]
        till.turn.set()
        await settled()
        assert till.asked == ["w1", "w1"]
        waiting.close()
        assert await listening == NOTHING

    run(scene())


def test_a_call_of_other_machines_while_a_claim_is_asked_does_not_repeat_it():
    async def scene():
        till = Till()
        till.turn = asyncio.Event()
        waiting = Claims(till.ask)
        asking = asyncio.ensure_future(waiting.claim(claim(1), never))
        await settled()
        waiting.call(("w2",))
        till.turn.set()
        await settled()
        assert till.asked == ["w1"]
        waiting.call(("w1",))
        await settled()
        assert till.asked == ["w1", "w1"]
        waiting.close()
        await asking

    run(scene())


def test_news_while_a_claim_is_first_asked_is_not_missed():
    async def scene():
        till = Till()
        waiting = Claims(till.ask)
        earlier = asyncio.ensure_future(waiting.claim(claim(1), never))
        await settled()
        till.turn = asyncio.Event()
        later = asyncio.ensure_future(waiting.claim(claim(2), never))
        await settled()
        till.jobs = 2
        waiting.stir()
        till.turn.set()
        assert await earlier == grant()
        assert await later == grant()

    run(scene())


def test_who_was_answered_just_before_the_end_does_not_wait_beyond_it():
    async def scene():
        waiting = Claims(Till(otherwise=OTHERS_ONLY).ask)
        asked = claim()
        assert waiting.holds(asked, OTHERS_ONLY)
        waiting.close()
        assert await waiting.wait(asked, OTHERS_ONLY, waiting.mark(), never) == OTHERS_ONLY

    run(scene())
