"""Where stages may share a process: what the house gives to those that work for several runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from stoker.assembly.settings import Settings
from stoker.model.clock import Clock
from stoker.plan.company_runner import CompanyRunner, CompanySettings


def company_runner(
    settings: Settings, *, environment: Mapping[str, str], contain: str | None, version: str, clock: Clock
) -> CompanyRunner | None:
    """Give what runs members of companies; nothing where every stage has a process of its own."""
    if sys.platform != "linux":
        return None

    def company_settings() -> CompanySettings:
        return CompanySettings(
            folder=settings.companies,
            home=settings.home,
            # It works for others, too: of this run's own it gets nothing, and its folder may not outlast the run.
            cwd=settings.home,
            environment=environment,
            contain=contain,
            version=version,
            linger_s=settings.company_linger_s,
        )

    return CompanyRunner(company_settings, clock=clock)
