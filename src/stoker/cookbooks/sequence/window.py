"""The stage that divides a series in time and cuts it into windows."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, StageInputError, arg, stage
from stoker.cookbooks.sequence.kinds import Series, Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowArgs:
    """How to divide and to cut."""

    window: int = arg(24, help="rows that a model sees at once", ge=1, le=100_000)
    stride: int = arg(1, help="rows from the beginning of one window to the next", ge=1)
    horizon: int | None = arg(None, help="regression: next values to predict; null: 1", ge=1, le=10_000)
    validation_percent: int = arg(15, help="share of rows, before the test, that decide when to stop", ge=1, le=45)
    test_percent: int = arg(20, help="share of rows, the newest, held out for the test", ge=1, le=45)


@stage("sequence/window", version=1, uses=("numpy",))
def window(job: StageContext, series: Series, args: WindowArgs) -> Windows:
    """Divide a series in time, scale it by its training part and cut it into windows."""
    from stoker.cookbooks.sequence.arrays import WindowSettings, cut

    given = series.load()
    if args.horizon is not None and given.facts["problem"] == "classification":
        raise StageInputError(
            f"horizon={args.horizon}, but {given.facts['target']!r} is a class: a window's is that of its last row",
            hint="leave horizon out, or say problem=regression",
        )
    how = WindowSettings(
        window=args.window,
        stride=args.stride,
        horizon=args.horizon or 1,
        validation_percent=args.validation_percent,
        test_percent=args.test_percent,
    )
    windows = cut(given, how)
    for note in windows.facts["notes"][len(given.facts["notes"]) :]:
        job.log(note)
    counts = windows.facts["counts"]
    job.log(f"windows: {counts['train']} to train on, {counts['validation']} to stop by, {counts['test']} held out")
    return job.save(Windows, windows)
