"""Keys and explanations can't disagree: equal keys have no difference to tell, different keys always have one."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.core.digests import ArtifactRef, Digest, KindRef
from stoker.core.jsontext import dumps, loads
from stoker.engine.action import Action, StageFacts, differences
from tests.lengths import examples

# Few and confusable, so that two draws often meet, or nearly.
NAMES = st.sampled_from(["a", "b", "ab", "a.b", "é"])
DIGESTS = st.sampled_from([Digest(letter * 64) for letter in "0af"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 0.0, float("nan"), float("inf"), "", "1", "nan"])
VALUES = st.recursive(
    SCALARS | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES | st.just("$float"), inner, max_size=2),
    max_leaves=4,
)
REFS = st.builds(ArtifactRef, st.builds(KindRef, NAMES, st.integers(1, 2)), DIGESTS)


@st.composite
def actions(draw: st.DrawFn) -> Action:
    facts = StageFacts(
        stage=draw(NAMES),
        version=draw(st.integers(1, 2)),
        output=draw(st.sampled_from(["k@1", "k@1[]", "k@2"])),
        code=draw(st.dictionaries(NAMES, DIGESTS, max_size=2)),
        env=draw(st.dictionaries(NAMES, st.sampled_from(["1.0", "absent"]), max_size=2)),
    )
    inputs = draw(st.dictionaries(NAMES, st.lists(REFS, max_size=2).map(tuple), max_size=2))
    return Action(
        facts=facts,
        facts_digest=facts.digest(),
        inputs=tuple(sorted(inputs.items(), key=lambda pair: pair[0])),
        args=draw(st.dictionaries(NAMES, VALUES, max_size=2)),
        partition=draw(st.sampled_from(["", "p"])),
    )


def with_args(**args: Any) -> Action:
    facts = StageFacts(stage="a", version=1, output="k@1", code={}, env={})
    return Action(facts=facts, facts_digest=facts.digest(), inputs=(), args=args)


@settings(max_examples=examples(100, 250), deadline=None)
@given(actions(), actions())
@example(with_args(x=None), with_args())
@example(with_args(x=1), with_args(x=True))
@example(with_args(x=float("nan")), with_args(x=float("nan")))
def test_different_keys_have_a_difference_and_equal_ones_have_none(one: Action, other: Action) -> None:
    told = differences(one, other)
    assert bool(told) == (one.key() != other.key())
    assert len(told) == len(differences(other, one))


@settings(max_examples=examples(48, 120), deadline=None)
@given(actions())
def test_the_stored_pre_image_gives_back_the_key(action: Action) -> None:
    again = Action.from_json(loads(dumps(action.to_json())))
    assert again.key() == action.key()
    assert differences(action, again) == []


@settings(max_examples=examples(40, 100), deadline=None)
@given(actions(), st.randoms(use_true_random=False))
def test_the_order_of_a_pre_images_maps_is_nothing(action: Action, chance: random.Random) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = [(key, shuffled(item)) for key, item in value.items()]
            chance.shuffle(items)
            return dict(items)
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    assert Action.from_json(shuffled(action.to_json())).key() == action.key()
