from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from stoker.core.frozen import changeable, changed, compile_constructors, fields_of, fresh, frozen, frozen_by_position


@frozen
class Lease:
    """Who and until when."""

    owner: str
    expires_s: float = 1.5
    notes: list[str] = fresh(factory=list)

    @property
    def is_long(self) -> bool:
        return self.expires_s > 10


@changeable
class Attempt:
    name: str
    tries: int = 0
    notes: list[str] = fresh(factory=list)


@frozen_by_position
class Pair:
    left: int
    right: int = 0


@frozen
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            message = f"{self.number} is not positive"
            raise ValueError(message)


@frozen
class Named:
    name: str

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def test_defaults_are_filled_and_fields_are_given_by_name() -> None:
    lease = Lease(owner="me")
    assert (lease.owner, lease.expires_s, lease.notes, lease.is_long) == ("me", 1.5, [], False)
    with pytest.raises(TypeError):
        Lease("me")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="owner"):
        Lease()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="color"):
        Lease(owner="me", color="red")  # type: ignore[call-arg]


def test_a_fresh_default_is_made_for_every_object() -> None:
    first, second = Lease(owner="a"), Lease(owner="b")
    first.notes.append("mine")
    assert second.notes == []


def test_nothing_can_be_changed_added_or_removed() -> None:
    lease = Lease(owner="me")
    with pytest.raises(AttributeError, match=r"Lease\.owner"):
        lease.owner = "you"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        lease.color = "red"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        del lease.owner
    assert not hasattr(lease, "__dict__")


def test_equal_fields_of_one_class_are_equal_and_hash_alike() -> None:
    assert Pair(1, 2) == Pair(1, 2)
    assert hash(Pair(1, 2)) == hash(Pair(1, 2))
    assert Pair(1, 2) != Pair(2, 1)
    assert Pair(1) != (1, 0)  # type: ignore[comparison-overlap]


def test_a_class_may_keep_identity_as_its_equality() -> None:
    one, other = Named(name="a"), Named(name="a")
    assert one != other
    assert len({one, other}) == 2


def test_a_copy_differs_only_in_what_is_named() -> None:
    lease = Lease(owner="me", expires_s=20.0)
    assert fields_of(changed(lease, owner="you")) == {"owner": "you", "expires_s": 20.0, "notes": []}
    assert lease.owner == "me"


def test_values_may_be_refused() -> None:
    with pytest.raises(ValueError, match="-1 is not positive"):
        Positive(number=-1)


def test_a_mutable_default_is_refused() -> None:
    with pytest.raises(TypeError, match=r"write fresh\(factory=dict\)"):

        @frozen
        class Shared:
            names: dict[str, str] = {}  # noqa: RUF012 - what is tested


def test_it_shows_and_matches_and_survives_copying() -> None:
    assert repr(Pair(1, 2)) == "Pair(left=1, right=2)"
    assert pickle.loads(pickle.dumps(Pair(1, 2))) == Pair(1, 2)
    assert copy.deepcopy(Lease(owner="me")) == Lease(owner="me")
    match Pair(3, 4):
        case Pair(left, right):
            assert (left, right) == (3, 4)


def test_declaring_one_costs_a_fraction_of_a_dataclass() -> None:
    """In a process of its own, best of several: the figure that the decision rests on."""
    program = """
import time
from dataclasses import dataclass
from stoker.core.frozen import frozen

def best(decorate):
    times = []
    for _ in range(30):
        start = time.process_time()
        for _ in range(10):
            @decorate
            class Three:
                "Three fields."
                a: int
                b: str
                c: float
        times.append(time.process_time() - start)
    return min(times)

print(best(frozen) / best(dataclass(frozen=True, slots=True, kw_only=True)))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(ended.stdout) < 0.5


def test_a_constructor_is_compiled_when_the_third_object_is_made_and_not_before() -> None:
    @frozen
    class Late:
        size: int
        parts: list[int] = fresh(factory=list)

    at_import = Late.__init__
    made = [Late(size=1), Late(size=1)]
    assert Late.__init__ is at_import
    made.append(Late(size=1))
    compiled = Late.__init__
    assert compiled is not at_import
    made.append(Late(size=1))
    assert Late.__init__ is compiled
    assert all(one == made[0] for one in made)
    assert len({id(one.parts) for one in made}) == 4


def test_a_process_that_forks_can_compile_all_constructors_before() -> None:
    @frozen
    class Shared:
        size: int

    at_import = Shared.__init__
    compile_constructors()
    compiled = Shared.__init__
    assert compiled is not at_import
    assert Shared(size=2).size == 2
    assert Shared.__init__ is compiled
    compile_constructors()
    assert Shared.__init__ is compiled


def test_the_first_object_refuses_what_every_other_does() -> None:
    said: list[str] = []
    for _ in range(2):

        @frozen
        class Strict:
            size: int

        if said:
            Strict(size=1)
        with pytest.raises(TypeError) as refused:
            Strict(length=1)  # type: ignore[call-arg]
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert "unexpected keyword argument 'length'" in said[0]


def test_a_changeable_object_can_be_changed_and_equals_only_itself() -> None:
    one, other = Attempt(name="train"), Attempt(name="train")
    one.tries += 1
    one.notes.append("slow")
    assert (one.tries, one.notes, other.tries, other.notes) == (1, ["slow"], 0, [])
    assert one == one  # noqa: PLR0124 - that is what is said of it
    assert one != other
    assert {one: "first", other: "second"}[one] == "first"
    assert fields_of(one) == {"name": "train", "tries": 1, "notes": ["slow"]}
    assert repr(other) == "Attempt(name='train', tries=0, notes=[])"


def test_a_changeable_object_has_no_fields_but_those_declared() -> None:
    attempt = Attempt(name="train")
    with pytest.raises(AttributeError):
        attempt.trys = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Attempt("train")  # type: ignore[call-arg]


@pytest.mark.parametrize("made_before", [0, 1, 2, 3])
def test_odd_arguments_are_refused_however_many_objects_there_are(made_before: int) -> None:
    @frozen
    class Small:
        name: str
        notes: list[str] = fresh(factory=list)

    for _ in range(made_before):
        assert Small(name="a").notes == []
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'name'"):
        Small()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nme'"):
        Small(nme="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        Small(name="a", other=1)  # type: ignore[call-arg]
    assert Small(name="a") == Small(name="a", notes=[])


def test_the_first_objects_are_made_as_all_later_ones() -> None:
    @frozen
    class Small:
        number: int = 1
        notes: list[str] = fresh(factory=list)

        def __post_init__(self) -> None:
            if self.number <= 0:
                message = f"{self.number} is not positive"
                raise ValueError(message)

    made = [Small(number=number) for number in (1, 2, 3, 4)]
    assert [one.number for one in made] == [1, 2, 3, 4]
    assert len({id(one.notes) for one in made}) == 4


@pytest.mark.parametrize("made_before", [0, 3])
def test_values_are_refused_from_the_first_object_on(made_before: int) -> None:
    @frozen
    class Small:
        number: int

        def __post_init__(self) -> None:
            if self.number <= 0:
                message = f"{self.number} is not positive"
                raise ValueError(message)

    for number in range(1, made_before + 1):
        Small(number=number)
    with pytest.raises(ValueError, match="-1 is not positive"):
        Small(number=-1)


def test_fields_are_found_where_annotations_are_evaluated_later() -> None:
    """As in a module without the future import: Python 3.14 then has no `__annotations__` in the namespace."""
    source = "@frozen\nclass Small:\n    number: int\n    word: str = 'x'\n"
    names: dict[str, type] = {}
    exec(compile(source, "small.py", "exec", dont_inherit=True), {"frozen": frozen, "__name__": "small"}, names)
    assert fields_of(names["Small"](number=1)) == {"number": 1, "word": "x"}
