"""Whatever a host sends, it is read or refused, and never anything else; what we say is read as it was meant."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.gang import rendezvous as lines
from stoker.gang.rendezvous import BadLine
from stoker.gang.rendezvous_types import HostFailure, HostPart, RendezvousOutcome

KEYS = st.sampled_from(
    ["kind", "name", "ranks", "devices", "hosts", "cause", "collateral", "facts", "missing", "rank", "text", "after_s",
     "traceback", "message", "host", "code", "hint", "epoch", "nonce", "exit", "phase"]
)  # fmt: skip
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=8), max_leaves=8
)
NAMES = st.text(min_size=1, max_size=64).filter(lines.is_name)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_line_or_refused(data: bytes) -> None:
    with suppress(BadLine):
        assert isinstance(lines.read(data)["kind"], str)


@given(st.dictionaries(KEYS, VALUES, max_size=12))
def test_any_object_is_read_within_its_bounds_or_refused(said: dict[str, Any]) -> None:
    for read in (
        lines.read_part,
        lines.read_hosts,
        lines.read_cause,
        lines.read_verdict,
        lines.nonce_of,
        lines.name_of,
    ):
        with suppress(BadLine):
            assert read(said) is not None


@given(st.text(max_size=3000), NAMES, st.lists(NAMES, max_size=3), st.booleans(), st.text(max_size=20000))
def test_a_cause_arrives_as_it_was_meant_but_for_what_is_too_long(
    message: str, host: str, missing: list[str], echo: bool, trace: str
) -> None:
    facts = {"rank": 3, "device": "device 0", "phase": "COMM", "how": "raised", "type": "ValueError", "text": message}
    cause = HostFailure(
        host=host,
        message=message,
        is_echo=echo,
        missing=tuple(missing),
        facts={**facts, "exit": None, "after_s": 0.5, "traceback": trace},
    )
    data = lines.write_over(RendezvousOutcome(cause=cause, collateral=(cause,) * 20), 1)
    assert data.count(b"\n") == 1
    assert len(data) <= lines.MOST_LINE_BYTES
    verdict = lines.read_verdict(lines.read(data))
    got = verdict.cause
    assert (got.host, got.missing, got.is_echo) == (host, tuple(missing), echo)
    assert (got.facts["rank"], got.facts["phase"], got.facts["exit"]) == (3, "COMM", None)
    assert 1 <= len(verdict.collateral) <= 16


def test_the_longest_of_all_verdicts_still_is_one_line() -> None:
    long = "\U0001f525" * 20_000
    words = dict.fromkeys(("device", "phase", "how", "type", "text", "exit", "traceback"), long)
    cause = HostFailure(host="h" * 64, message=long, code="x", hint=long, facts={**words, "rank": 1, "after_s": 1.0})
    data = lines.write_over(RendezvousOutcome(cause=cause, collateral=(cause,) * 300), 1)
    assert len(data) <= lines.MOST_LINE_BYTES
    assert lines.read_verdict(lines.read(data)).cause.facts["rank"] == 1


@given(NAMES, st.lists(st.text(max_size=200), min_size=1, max_size=8))
def test_what_a_host_brings_arrives(name: str, devices: list[str]) -> None:
    part = HostPart(ranks=len(devices), devices=tuple(devices), name=name)
    got = lines.read_part(lines.read(lines.write("attending", **lines.write_part(part))))
    assert (got.name, got.ranks, len(got.devices)) == (name, len(devices), len(devices))
