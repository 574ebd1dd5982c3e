"""Where stages may share a process: what the house gives to those that work for several runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from stoker.app.settings import AppSettings, with_kernels_kept
from stoker.core.clock import Clock
from stoker.devices.estimate.terms import CalibrationFile, EstimatedWork, keys_of
from stoker.engine.recipe import MeasuredPeakCorrection
from stoker.engine.runners.shared.shared_runner import SharedProcessRunner, SharedProcessSettings

# What earlier trainings took of devices, for the plans that are made here.


def remembered(path: str, work: EstimatedWork) -> MeasuredPeakCorrection:
    """Return what the book at a path says of some work, under the version of torch that is installed beside us."""
    torch = _torch_version()
    if not torch:
        return MeasuredPeakCorrection()
    return MeasuredPeakCorrection(names=keys_of(work, torch), correction=CalibrationFile(path).correction(work, torch))


@cache
def _torch_version() -> str:
    """Read it without importing torch."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def company_runner(
    settings: AppSettings, *, environment: Mapping[str, str], contain: str | None, version: str, clock: Clock
) -> SharedProcessRunner | None:
    """Return what runs members of companies; nothing where every stage has a process of its own."""
    if sys.platform != "linux":
        return None
    return SharedProcessRunner(
        lambda: company_settings(settings, environment=environment, contain=contain, version=version), clock=clock
    )


def company_settings(
    settings: AppSettings, *, environment: Mapping[str, str], contain: str | None, version: str
) -> SharedProcessSettings:
    """Return what all companies of this house have in common."""
    return SharedProcessSettings(
        folder=settings.companies,
        home=settings.home,
        # It works for others, too: of this run's own it gets nothing, and its folder may not outlast the run.
        cwd=settings.home,
        environment=with_kernels_kept(environment, settings.kernels),
        contain=contain,
        version=version,
        linger_s=settings.company_linger_s,
    )
