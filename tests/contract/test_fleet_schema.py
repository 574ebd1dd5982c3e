"""Requests made from the OpenAPI document itself, right and wrong ones: none of them may meet a bug."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.later import imported_later
from tests.servers.coordinator import Fleet, coordinator
from tests.servers.relay import Relay

with imported_later():
    import schemathesis
    from schemathesis import Case
    from schemathesis.core.result import Ok

BUG = 500
ENDLESS = ("/v1/events", "/v1/stream")


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("schema")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder, system_a=True) as fleet:
        yield fleet


@pytest.mark.parametrize("count", [2, pytest.param(150, marks=pytest.mark.slow)])
def test_no_request_that_the_document_allows_or_forbids_meets_a_bug(fleet: Fleet, count: int):
    # Over its socket, so that workers' routes are answered, too.
    with Relay(fleet.socket) as relay:
        _ask_everything(f"{relay.url}/v1/openapi.json", count)


def _ask_everything(url: str, count: int) -> None:
    document = schemathesis.openapi.from_url(url, timeout=60)
    met: list[str] = []
    asked = 0
    for result in document.get_all_operations():
        assert isinstance(result, Ok), "the document is no OpenAPI"
        operation = result.ok()
        if operation.path in ENDLESS:
            continue

        @given(case=operation.as_strategy())
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Case) -> None:
            nonlocal asked
            asked += 1
            if isinstance(case.query.get("wait_s"), int | float):
                # Allowed, and nothing here ends the wait: it would be spent waiting.
                case.query["wait_s"] = min(case.query["wait_s"], 0.1)
            answer = case.call(timeout=30)
            if answer.status_code == BUG:
                met.append(f"{case.method} {case.path}: {answer.text}")

        ask()
    assert asked > 50
    assert met == []
