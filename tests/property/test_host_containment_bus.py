from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.host.containment.mechanisms import _Reader, _Writer

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
VALUES = st.one_of(
    st.tuples(st.just("s"), TEXT),
    st.tuples(st.just("b"), st.booleans()),
    st.tuples(st.just("t"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("au"), st.lists(st.integers(0, 2**32 - 1), max_size=5)),
    st.tuples(st.just("as"), st.lists(TEXT, max_size=3)),
)
PROPERTIES = st.lists(st.tuples(TEXT, VALUES), max_size=6)


@given(unit=TEXT, properties=PROPERTIES, number=st.integers(0, 2**32 - 1))
def test_what_is_written_is_read_back(unit, properties, number):
    writer = _Writer()
    writer.put("y", 7)
    for signature, value in (("s", unit), ("a(sv)", properties), ("u", number)):
        writer.put(signature, value)
    reader = _Reader(bytes(writer.bytes), "<")
    assert reader.get("y") == 7
    assert reader.get("s") == unit
    # A variant is read as what it holds.
    assert reader.get("a(sv)") == [(name, value) for name, (_, value) in properties]
    assert reader.get("u") == number
