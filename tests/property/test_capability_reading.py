"""Whatever another machine sends is read or refused, and nothing else happens."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.capability import Capability, capability_from_dict
from stoker.core.device import Backend, Device, TriState, TriStateAnswer
from stoker.core.errors import BadInput

YES = TriStateAnswer(verdict=TriState.YES)
GOOD = Capability(
    hostname="desk",
    os="linux",
    arch="x86_64",
    devices=(Device(uuid="GPU-1", backend=Backend.CUDA, name="RTX", installed=YES, visible=YES, usable=YES),),
).to_dict()

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from(sorted(GOOD)), value=anything)
def test_a_bent_field_is_read_or_refused(field: str, value: Any):
    read_or_refused({**GOOD, field: value})


@given(field=st.sampled_from(sorted(GOOD["devices"][0])), value=anything)
def test_a_bent_device_is_read_or_refused(field: str, value: Any):
    read_or_refused({**GOOD, "devices": [{**GOOD["devices"][0], field: value}]})


@given(anything)
def test_anything_at_all_is_read_or_refused(value: Any):
    read_or_refused(value)


def read_or_refused(said: Any) -> None:
    try:
        read = capability_from_dict(said)
    except BadInput:
        return
    assert capability_from_dict(read.to_dict()) == read
