from __future__ import annotations

from stoker.core.digests import digest_bytes
from stoker.store.prune import PruneCandidate, PruneDecision, decide_prune
from tests.unit.store.real_stores import DAY_S, key_of

NOW_S = 1_000 * DAY_S


def candidate(
    name: str, *, days: float, blobs: dict[str, int] | None = None, inline: int = 0, kept: str = "", let_go: str = ""
) -> PruneCandidate:
    return PruneCandidate(
        key=key_of(name),
        last_used_s=NOW_S - days * DAY_S,
        blobs=tuple((digest_bytes(blob.encode()), size) for blob, size in (blobs or {}).items()),
        inline_bytes=inline,
        label=name,
        is_kept=kept,
        let_go=let_go,
    )


def decide(*candidates: PruneCandidate, max_bytes: int | None = None, older_days: float | None = None) -> PruneDecision:
    older_than_s = older_days * DAY_S if older_days is not None else None
    return decide_prune(candidates, now_s=NOW_S, max_bytes=max_bytes, older_than_s=older_than_s)


def labels(decision: PruneDecision) -> list[str]:
    return [removal.label for removal in decision.removals]


def test_without_a_limit_nothing_goes():
    decision = decide(candidate("a", days=900, inline=10))
    assert (labels(decision), decision.before_bytes, decision.after_bytes) == ([], 10, 10)


def test_the_least_recently_used_go_first_until_the_rest_fits():
    three = [candidate(name, days=days, inline=10) for name, days in (("b", 2), ("a", 3), ("c", 1))]
    assert labels(decide(*three, max_bytes=20)) == ["a"]
    assert labels(decide(*three, max_bytes=19)) == ["a", "b"]
    assert labels(decide(*three, max_bytes=0)) == ["a", "b", "c"]
    decision = decide(*three, max_bytes=19)
    assert (decision.before_bytes, decision.after_bytes, decision.freed_bytes) == (30, 10, 20)


def test_what_was_unused_for_too_long_goes_and_says_for_how_long():
    decision = decide(candidate("old", days=31, inline=1), candidate("new", days=29, inline=1), older_days=30)
    assert labels(decision) == ["old"]
    assert decision.removals[0].why == "unused for 31.0 days"


def test_a_removal_names_the_blobs_that_nobody_else_has():
    first = candidate("first", days=3, blobs={"shared": 100, "own": 5})
    decision = decide(first, candidate("second", days=2, blobs={"shared": 100}), older_days=2.5)
    assert decision.removals[0].freed_blobs == ((digest_bytes(b"own"), 5),)


def test_equal_times_are_decided_the_same_way_every_time():
    twins = [candidate(name, days=1, inline=1) for name in "abcdef"]
    assert decide(*twins, max_bytes=3) == decide(*reversed(twins), max_bytes=3)


def test_a_shared_blob_is_counted_once_and_freed_with_its_last_record():
    first = candidate("first", days=3, blobs={"shared": 100, "own": 5})
    second = candidate("second", days=2, blobs={"shared": 100})
    decision = decide(first, second, max_bytes=0)
    assert decision.before_bytes == 105
    assert [removal.freed_bytes for removal in decision.removals] == [5, 100]
    assert decision.after_bytes == 0


def test_a_record_that_names_one_blob_twice_frees_it_once():
    twice = PruneCandidate(
        key=key_of("twice"), last_used_s=0, blobs=((digest_bytes(b"x"), 7), (digest_bytes(b"x"), 7)), label="twice"
    )
    decision = decide(twice, max_bytes=0)
    assert (decision.before_bytes, decision.after_bytes) == (7, 0)


def test_what_is_kept_stays_whatever_the_limit_and_is_reported():
    pinned = candidate("pinned", days=9, inline=10, kept="pinned as best")
    running = candidate("running", days=8, inline=10, kept="used by a running job")
    free = candidate("free", days=1, inline=10)
    decision = decide(pinned, running, free, max_bytes=5, older_days=5)
    assert labels(decision) == ["free"]
    assert decision.kept_by_reason == {"pinned as best": 1, "used by a running job": 1}
    assert decision.after_bytes == 20


def test_a_record_whose_bytes_stay_anyway_is_not_let_go_for_nothing():
    pinned = candidate("pinned", days=1, blobs={"shared": 100}, kept="pinned")
    sharing = candidate("sharing", days=9, blobs={"shared": 100})
    other = candidate("other", days=2, blobs={"other": 50})
    assert labels(decide(pinned, sharing, other, max_bytes=100)) == ["other"]
    assert labels(decide(pinned, sharing, other, older_days=5)) == ["sharing"]


def test_what_was_let_go_of_goes_without_any_limit_and_says_why():
    decision = decide(candidate("put", days=1, inline=7, let_go="no name"), candidate("result", days=900, inline=1))
    assert labels(decision) == ["put"]
    assert (decision.removals[0].why, decision.freed_bytes) == ("no name", 7)


def test_what_was_let_go_of_a_moment_ago_is_spared_and_what_is_pinned_stays():
    young = candidate("young", days=0.01, inline=1, let_go="no name")
    pinned = candidate("pinned", days=9, inline=1, let_go="no name", kept="pinned as p")
    decision = decide(young, pinned)
    assert labels(decision) == []
    assert decision.kept_by_reason == {"pinned as p": 1, "put without a name, for less than an hour": 1}
    assert labels(decide(young, max_bytes=0)) == ["young"]
