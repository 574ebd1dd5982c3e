"""The curves of a job as a small PNG for notifications; nothing where matplotlib is not installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from stoker.coordinator.queue.reader import QueueReader
from stoker.core.errors import StokerError
from stoker.jobs.job_curves import CurveRange, curve_files, joined_files, read_job_curves
from stoker.jobs.job_folder import JobFolder
from stoker.views.charts import ChartLine, curve_panel, curves_of_panels

_METRICS = 2
_POINTS = 400
_LARGEST_BYTES = 1 << 20


class CurvePictures:
    """Draws the metrics of a job's attempts."""

    def __init__(self, reader: QueueReader, folder_of: Callable[[str, int], str]) -> None:
        """`folder_of` returns the mirrored folder of a job's attempt, by id and number."""
        self._reader = reader
        self._folder_of = folder_of
        self._can_draw = find_spec("matplotlib") is not None

    def picture(self, job: str) -> bytes:
        """Return the curves of a job (by id) as PNG; empty if there are none or they can't be drawn."""
        if not self._can_draw:
            return b""
        try:
            attempts = self._reader.attempts_of(job)
            files = joined_files(
                curve_files(JobFolder(self._folder_of(job, one.number)).metrics_folder) for one in attempts
            )
            curves = read_job_curves(files, CurveRange(points=_POINTS)).curves[:_METRICS]
        except (StokerError, OSError):
            return b""
        panels = []
        for curve in curves:
            points = tuple((float(step), value) for step, value, _ in curve.points)
            panel = curve_panel(curve.name, [ChartLine(label=curve.name, points=points, rank=0, is_best=True)])
            panels += [panel] if panel is not None and len(points) > 1 else []
        if not panels:
            return b""
        # Importing matplotlib is slow.
        from stoker.views.png import to_png  # noqa: PLC0415

        data = to_png(curves_of_panels(panels, []))
        return data if len(data) <= _LARGEST_BYTES else b""
