"""Messages are built when they are first used, whole and once, whoever uses them; a coordinator builds all of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stoker.protocol.codec import StrictRequest, WireMessage, build_messages, from_json

THREADS = 16


def new_kind(base: type[BaseModel]) -> type[BaseModel]:
    # Said again: a process that has built its messages changed it in the base.
    late = ConfigDict(defer_build=True)

    class Part(base):  # type: ignore[misc, valid-type]  # a base that is a value
        model_config = late
        count: Annotated[int, Field(ge=0)]

    class Whole(base):  # type: ignore[misc, valid-type]
        model_config = late
        name: str
        parts: tuple[Part, ...]

    # Annotations are texts here, and the names in them those of this function.
    Whole.__pydantic_parent_namespace__ = {"Part": Part}
    return Whole


def test_a_command_that_imports_the_client_builds_no_message_before_it_uses_one():
    script = (
        "import stoker.protocol.client\n"
        "from stoker.protocol.codec import StrictRequest, WireMessage\n"
        "kinds = [kind for base in (StrictRequest, WireMessage) for kind in base.__subclasses__()]\n"
        "print(len(kinds), *(kind.__name__ for kind in kinds if kind.__pydantic_complete__))"
    )
    said = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    count, *built = said.stdout.split()
    assert int(count) > 50
    assert built == []


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("base", [StrictRequest, WireMessage])
def test_threads_that_use_a_message_for_the_first_time_at_once_all_get_the_whole_check(base):
    for _ in range(20):
        kind, start = new_kind(base), Barrier(THREADS)

        def read(number: int, kind: type[BaseModel] = kind, start: Barrier = start) -> str:
            start.wait()
            # A validator of the base class would take either, and find no field in it.
            if number % 2:
                with pytest.raises(ValueError, match="count"):
                    from_json(kind, b'{"name": "a", "parts": [{"count": -1}]}')
                return "a"
            return from_json(kind, b'{"name": "a", "parts": [{"count": 1}]}').name  # type: ignore[attr-defined]

        with ThreadPoolExecutor(THREADS) as threads:
            assert list(threads.map(read, range(THREADS))) == ["a"] * THREADS


def test_after_all_are_built_nothing_that_is_made_of_a_message_waits():
    kind = new_kind(WireMessage)
    assert not kind.__pydantic_complete__
    build_messages()
    assert kind.__pydantic_complete__
    # A web framework makes one of each body that it takes, and silences its warnings while it does.
    assert TypeAdapter(Annotated[kind, Field(description="x")]).pydantic_complete
