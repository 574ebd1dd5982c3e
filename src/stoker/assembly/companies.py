"""Where stages may share a process: what the house gives to those that work for several runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from stoker.assembly.settings import Settings, with_kernels_kept
from stoker.model.clock import Clock
from stoker.plan.company.founding import CompanySettings
from stoker.plan.company.runner import CompanyRunner


def company_runner(
    settings: Settings, *, environment: Mapping[str, str], contain: str | None, version: str, clock: Clock
) -> CompanyRunner | None:
    """Give what runs members of companies; nothing where every stage has a process of its own."""
    if sys.platform != "linux":
        return None
    return CompanyRunner(
        lambda: company_settings(settings, environment=environment, contain=contain, version=version), clock=clock
    )


def company_settings(
    settings: Settings, *, environment: Mapping[str, str], contain: str | None, version: str
) -> CompanySettings:
    """Give what all companies of this house have in common."""
    return CompanySettings(
        folder=settings.companies,
        home=settings.home,
        # It works for others, too: of this run's own it gets nothing, and its folder may not outlast the run.
        cwd=settings.home,
        environment=with_kernels_kept(environment, settings.kernels),
        contain=contain,
        version=version,
        linger_s=settings.company_linger_s,
    )
