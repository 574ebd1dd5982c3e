from __future__ import annotations

import pytest

from stoker.worker import enrolment
from tests.servers.door import stretched


@pytest.fixture(autouse=True)
def _one_code(monkeypatch):
    """Stretch the code that all these tests have only once: it is slow on purpose."""
    monkeypatch.setattr(enrolment, "join_key", stretched)
