"""The grammar of filters, and which jobs match."""

from __future__ import annotations

import pytest

from stoker.api.monitor import JobQuery
from stoker.core.errors import Usage
from stoker.tui.job_filter import filter_text, matches, parse_filter
from tests.fakes.monitor import job


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", JobQuery()),
        ("resnet", JobQuery(name="resnet")),
        ("state:failed user:anna", JobQuery(state="failed", submitter="anna")),
        ("state:failed,running lr=0.1 wd=0", JobQuery(state="failed,running", name="lr=0.1 wd=0")),
        ("machine:desk sweep:resnet recipe:a/b", JobQuery(machine="desk", sweep="resnet", recipe="a/b")),
    ],
)
def test_a_filter_is_a_query_and_back(text: str, query: JobQuery) -> None:
    assert parse_filter(text) == query
    assert parse_filter(filter_text(query)) == query


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stat:failed", "unknown filter 'stat': did you mean 'state'?"),
        ("state:faild", "unknown state 'faild': did you mean 'failed'?"),
        ("user:", "filter user: has no value"),
    ],
)
def test_a_wrong_filter_names_the_nearest_word(text: str, message: str) -> None:
    with pytest.raises(Usage) as caught:
        parse_filter(text)
    assert caught.value.message.replace("`", "'").startswith(message.partition(": did")[0])


def test_a_job_matches_by_every_field() -> None:
    view = job(3, "failed", label="lr=0.1", machine="desk")
    for text in ("RESNET", "lr=0", "state:failed", "user:anna", "machine:desk", "sweep:resnet", "recipe:tabular/gbt"):
        assert matches(parse_filter(text), view), text
    for text in ("other", "state:running", "user:bob", "machine:lab", "sweep:res", "recipe:tabular"):
        assert not matches(parse_filter(text), view), text
