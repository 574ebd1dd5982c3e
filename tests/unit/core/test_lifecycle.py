from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import InvalidTransition
from stoker.core.job import JobHistoryEntry, JobLife, JobState, JobTransition, move
from tests.lengths import examples

# pending → claimed → running → completed | failed | cancelled; back to pending by release, expiry or retry;
# a terminal state is left only by requeue. Who holds a job may fail it; a person may cancel it until it has ended.
LEGAL = {
    ("pending", "claim"): "claimed",
    ("pending", "cancel"): "cancelled",
    ("claimed", "start"): "running",
    ("claimed", "fail"): "failed",
    ("claimed", "cancel"): "cancelled",
    ("claimed", "release"): "pending",
    ("claimed", "expire"): "pending",
    ("claimed", "retry"): "pending",
    ("running", "finish"): "completed",
    ("running", "fail"): "failed",
    ("running", "cancel"): "cancelled",
    ("running", "release"): "pending",
    ("running", "expire"): "pending",
    ("running", "retry"): "pending",
    ("completed", "requeue"): "pending",
    ("failed", "requeue"): "pending",
    ("cancelled", "requeue"): "pending",
}
WAY_TO = {
    "pending": (),
    "claimed": ("claim",),
    "running": ("claim", "start"),
    "completed": ("claim", "start", "finish"),
    "failed": ("claim", "start", "fail"),
    "cancelled": ("claim", "cancel"),
}
ILLEGAL = sorted(set(product(map(str, JobState), map(str, JobTransition))) - LEGAL.keys())
MOVES = st.lists(st.sampled_from(list(JobTransition)), max_size=30)


def live(*verbs: str) -> JobLife:
    life = JobLife()
    for at_s, verb in enumerate(verbs):
        life = move(life, JobTransition(verb), at_s=float(at_s))
    return life


@pytest.mark.parametrize(("state", "verb"), LEGAL)
def test_a_legal_move_leads_where_it_should_and_is_remembered(state, verb):
    before = live(*WAY_TO[state])
    assert before.state == state
    after = move(before, JobTransition(verb), at_s=9.0, why="because")
    assert after.state == LEGAL[state, verb]
    assert after.story == (
        *before.story,
        JobHistoryEntry(at_s=9.0, move=JobTransition(verb), to=after.state, why="because"),
    )
    assert after.epoch == before.epoch + (verb in {"claim", "requeue"})


@pytest.mark.parametrize(("state", "verb"), ILLEGAL)
def test_every_other_move_is_refused_with_the_story(state, verb):
    life = live(*WAY_TO[state])
    with pytest.raises(InvalidTransition) as caught:
        move(life, JobTransition(verb), at_s=9.0)
    error = caught.value
    assert str(error).startswith(f"a {state} job can't {verb} (")
    told = [f"{moment.move} → {moment.to}" for moment in life.story]
    assert str(error).endswith(f"({', '.join(told)})" if told else "(no history)")
    assert error.data == {"state": state, "move": verb}
    assert ("requeue" in error.hint) == life.state.is_terminal


def test_every_pair_of_state_and_move_is_ruled():
    assert len(LEGAL) + len(ILLEGAL) == len(JobState) * len(JobTransition) == 54


def test_a_refused_move_changes_nothing():
    life = live("claim", "start", "finish")
    with pytest.raises(InvalidTransition):
        move(life, JobTransition.CLAIM, at_s=9.0)
    assert life == live("claim", "start", "finish")


def test_exactly_the_three_ends_are_terminal():
    assert {state for state in JobState if state.is_terminal} == {"completed", "failed", "cancelled"}


def test_a_requeue_and_the_claim_after_it_each_raise_the_epoch():
    life = live("claim", "start", "fail")
    assert life.epoch == 1
    life = move(life, JobTransition.REQUEUE, at_s=4.0)
    assert (life.state, life.epoch) == ("pending", 2)
    assert move(life, JobTransition.CLAIM, at_s=5.0).epoch == 3


@settings(max_examples=examples(60, 150), deadline=None)
@given(verbs=MOVES)
def test_epochs_only_rise_and_no_two_claims_share_one(verbs):
    lives = [JobLife()]
    claimed_under = []
    for verb in verbs:
        try:
            lives.append(move(lives[-1], verb, at_s=float(len(lives))))
        except InvalidTransition:
            continue
        if verb is JobTransition.CLAIM:
            claimed_under.append(lives[-1].epoch)
    assert all(before.epoch <= after.epoch for before, after in pairwise(lives))
    assert claimed_under == sorted(set(claimed_under))
    assert len(lives[-1].story) == len(lives) - 1


@settings(max_examples=examples(60, 150), deadline=None)
@given(verbs=MOVES)
def test_a_terminal_state_is_left_only_by_requeue_whatever_is_tried(verbs):
    life = JobLife()
    for verb in verbs:
        before = life
        try:
            life = move(life, verb, at_s=0.0)
        except InvalidTransition:
            continue
        assert verb is JobTransition.REQUEUE or not before.state.is_terminal
