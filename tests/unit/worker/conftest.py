"""An office, as the tests of jobs have one."""

from __future__ import annotations

from tests.unit.jobs.conftest import office

__all__ = ["office"]
