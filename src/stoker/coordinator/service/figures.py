"""Figures as Prometheus reads them: jobs and machines by state, what workers asked and got, how long commands took."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """How often something was at most so large. Only one thread adds to it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterable[str]:
        """Give it as Prometheus reads it."""
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield f'{name}_bucket{{le="{bound:g}"}} {total}'
        total += self._counts[-1]
        yield f'{name}_bucket{{le="+Inf"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Page:
    """A page of figures on its way out."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def one(self, name: str, kind: str, help: str, value: float) -> None:
        """Write one number."""
        self.by(name, kind, help, "", {"": value})

    def by(self, name: str, kind: str, help: str, label: str, values: Mapping[str, float]) -> None:
        """Write numbers apart by a label."""
        self._head(name, kind, help)
        for value_of, value in sorted(values.items()):
            labelled = f'{{{label}="{_escaped(value_of)}"}}' if label else ""
            self._lines.append(f"{name}{labelled} {value:.17g}")

    def histogram(self, name: str, help: str, values: Histogram) -> None:
        """Write how something is spread."""
        self._head(name, "histogram", help)
        self._lines += values.lines(name)

    def to_bytes(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()

    def _head(self, name: str, kind: str, help: str) -> None:
        self._lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
