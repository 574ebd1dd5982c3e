"""What earlier trainings took of devices, for the plans that are made here."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from stoker.hardware.estimate.calibration import CalibrationBook, Foretold, keys_of
from stoker.plan.surroundings import Remembered


def remembered(path: str, work: Foretold) -> Remembered:
    """Give what the book at a path says of some work, under the version of torch that is installed beside us."""
    torch = _torch_version()
    if not torch:
        return Remembered()
    return Remembered(names=keys_of(work, torch), correction=CalibrationBook(path).correction(work, torch))


@cache
def _torch_version() -> str:
    """Read it without importing torch."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
