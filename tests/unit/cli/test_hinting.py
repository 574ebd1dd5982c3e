"""Hints in the words of the command line, for errors of floors that know no options."""

from __future__ import annotations

import pytest

from stoker.cli.fetch import GRAMMAR
from stoker.cli.fetch_session import _HINTS, hinted, hinted_for_job
from stoker.core import errors
from stoker.core.errors import NetworkFailed, NotOnServer, StokerError

CODES = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StokerError)}
OPTIONS = {name for option in GRAMMAR.options for name in option.names}


def test_what_is_offered_is_added_once_to_what_is_there() -> None:
    error = NotOnServer("not here", hint="look", reason="offline")
    assert hinted(hinted(error)).hint == "look; download it without --offline"
    assert hinted(NotOnServer("not here", reason="offline")).hint == "download it without --offline"


@pytest.mark.parametrize("error", [NotOnServer("gone", hint="look"), NotOnServer("gone", hint="look", reason="other")])
def test_an_error_that_nothing_is_offered_for_stays_as_it_is(error: NotOnServer) -> None:
    assert hinted(error).hint == "look"


@pytest.mark.parametrize("key", _HINTS)
def test_a_hint_is_for_an_error_that_exists_and_names_options_that_exist(key: tuple[str, str]) -> None:
    assert key[0] in CODES
    assert {word.strip(",;") for word in _HINTS[key].split() if word.startswith("--")} <= OPTIONS


def test_a_job_is_offered_what_a_job_takes_where_the_hub_is_not_reached() -> None:
    error = NetworkFailed("refused", is_hub=True, reason="refused")
    assert "--offline" in hinted(error).hint
    told = hinted_for_job(error, "base").hint
    assert ("--" in told, "base=FOLDER" in told, "HF_ENDPOINT" in told) == (False, True, True)
    assert hinted_for_job(NetworkFailed("slow", hint="wait", is_hub=True, reason="slow"), "base").hint == "wait"


def test_a_network_that_failed_is_followed_by_how_to_resume_once() -> None:
    told = "look; the same command tries again"
    assert hinted(hinted(NetworkFailed("refused", hint="look"))).hint == told
    kept = "downloaded data is kept (1 B of 2 B): the same command resumes"
    assert hinted(NetworkFailed("refused", hint=kept)).hint == kept
    assert hinted(NetworkFailed("bad certificate", hint="look", is_lasting=True)).hint == "look"


def test_a_hint_that_asks_a_question_is_followed_by_a_space_and_claims_nothing_that_never_came() -> None:
    error = NetworkFailed("refused", hint="is the server running?", kept_bytes=0)
    assert hinted(error).hint == "is the server running? the same command tries again"
