from __future__ import annotations

import pytest

from stoker.worker.enrolling import joining
from tests.servers.door import stretched


@pytest.fixture(autouse=True)
def _one_code(monkeypatch):
    """Stretch the code that all these tests have only once: it is slow on purpose."""
    monkeypatch.setattr(joining, "join_key", stretched)
