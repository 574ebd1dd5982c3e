"""Downloads as lines: each running file, all files together, and each finished file."""

from __future__ import annotations

from typing import Any

from stoker.core.events import Event, Kinds
from stoker.core.frozen import changeable, frozen
from stoker.core.text import format_duration, format_size, outside
from stoker.views.text_tables import span

_BAR_CELLS = 20
_FEWEST_CELLS = 5
_WORTH_A_ROW_BYTES = 1 << 20
_WORTH_A_RATE_S = 0.05


@changeable
class TransferDisplay:
    """The state of one file, from its events."""

    file: str
    began_s: float
    start: int = 0
    downloaded: int = 0
    total: int | None = None
    rate_bytes_per_s: float | None = None
    eta_s: float | None = None
    has_begun: bool = False
    """True once data was received."""
    pause: str = ""
    """Why the download is paused."""
    attempt: int = 0
    """The last failed attempt while waiting for the next; else 0."""
    retry_at_s: float = 0.0
    """Time of the next attempt."""
    ended: str = ""
    """`done` or `failed` after the end."""


@frozen
class DrawStyle:
    """How progress is drawn: with a bar or without, in which characters, and in which width (0: any)."""

    is_drawn: bool = True
    is_unicode: bool = False
    room: int = 0


class Transfers:
    """The state of a set of files."""

    def __init__(self, *, files: int = 1, total_bytes: int | None = None) -> None:
        self.files = files
        self.total_bytes = total_bytes
        self._known: dict[str, TransferDisplay] = {}

    def take(self, event: Event, at_s: float) -> TransferDisplay | None:
        """Handle one event; return its file."""
        shown: dict[str, Any] = event.fields
        name = str(shown.get("file", ""))
        if event.kind not in _KINDS:
            return None
        known = self._known.get(name) or TransferDisplay(file=name, began_s=at_s)
        if event.kind != Kinds.DOWNLOAD_RETRY:
            # A retry may be of a request that is not a file.
            self._known[name] = known
        if event.kind == Kinds.DOWNLOAD_START:
            known.start = known.downloaded = int(shown.get("start") or 0)
            known.total, known.pause, known.has_begun = shown.get("total"), "", True
        elif event.kind == Kinds.DOWNLOAD_PROGRESS:
            known.downloaded, known.total = int(shown.get("downloaded") or 0), shown.get("total")
            known.rate_bytes_per_s, known.eta_s, known.pause = shown.get("rate_bytes_per_s"), shown.get("eta_s"), ""
            known.has_begun = True
        elif event.kind in (Kinds.DOWNLOAD_RETRY, Kinds.DOWNLOAD_WAITING):
            known.pause, known.rate_bytes_per_s, known.eta_s = str(shown.get("msg", "")), None, None
            wait_s = seconds_of(shown)
            known.attempt, known.retry_at_s = int(shown.get("attempt") or 0) if wait_s else 0, at_s + wait_s
        elif event.kind == Kinds.DOWNLOAD_DONE:
            known.ended, known.downloaded = "done", int(shown.get("bytes") or 0)
            known.total = known.downloaded
        else:
            known.ended = "failed"
        return known

    def in_flight(self) -> list[TransferDisplay]:
        return [one for one in self._known.values() if not one.ended]

    def worth_rows(self) -> list[TransferDisplay]:
        """Return the files to show one by one: running ones, and of many only large ones."""
        return [
            one
            for one in self.in_flight()
            if self.files == 1
            or ((one.has_begun or one.pause) and (one.total is None or one.total >= _WORTH_A_ROW_BYTES))
        ]

    def together(self, how: DrawStyle) -> str:
        """Return the progress of all files."""
        flying = self.in_flight()
        over = [one for one in self._known.values() if one.ended]
        got = sum(one.downloaded for one in self._known.values() if one.ended != "failed")
        rate = sum(one.rate_bytes_per_s or 0.0 for one in flying)
        left = self.total_bytes - got if self.total_bytes is not None else None
        left_s = left / rate if left is not None and left > 0 and rate else None
        if left_s is not None:
            # Not sooner than the slowest file.
            left_s = max([left_s, *(one.eta_s for one in flying if one.eta_s is not None)])
        news = [rate_text(rate or None), left_text(left_s)]
        return _fitted(how, f"{len(over)} of {self.files} files", got, self.total_bytes, news)


def short_name(label: str, within: str) -> str:
    """Return a file's name without its repository, safe to print."""
    return outside(label.removeprefix(f"{within}: ") if within else label)


def flying_text(one: TransferDisplay, how: DrawStyle, now_s: float) -> str:
    """Return the progress of one file: bar, amount, rate, time left; without the bar if it does not fit."""
    if one.pause and how.is_drawn and one.attempt and one.retry_at_s > now_s:
        return f"{again_text(one.attempt, one.retry_at_s - now_s)}: {outside(one.pause)}"
    if one.pause:
        return outside(one.pause)
    news = [rate_text(one.rate_bytes_per_s), left_text(one.eta_s)]
    return _fitted(how, "", one.downloaded, one.total, news)


def again_text(attempt: int, wait_s: float) -> str:
    """Return the failed attempt and the time until the next."""
    return f"attempt {attempt}, retry in {span(wait_s)}"


def seconds_of(shown: dict[str, Any]) -> float:
    """Return the pause of an event before the next attempt."""
    wait_s = shown.get("wait_secs")
    return float(wait_s) if isinstance(wait_s, int | float) else 0.0


def done_text(shown: dict[str, Any]) -> str:
    """Return the size of a finished file, its time and rate."""
    size_bytes, seconds = int(shown.get("bytes") or 0), float(shown.get("ms") or 0) / 1000
    head = f"{format_size(size_bytes):>9}"
    status = shown.get("status")
    if status == "cached":
        return f"{head}  present"
    if status == "linked":
        return f"{head}  on this machine"
    network, resumed = int(shown.get("bytes_from_network") or 0), int(shown.get("bytes_resumed") or 0)
    pace = f" ({rate_text(network / seconds)})" if seconds >= _WORTH_A_RATE_S and network else ""
    return f"{head}  in {span(seconds)}{pace}{f', {format_size(resumed)} resumed' if resumed else ''}"


def _fitted(how: DrawStyle, head: str, done: int, total: int | None, news: list[str]) -> str:
    room = how.room
    text = "  ".join(part for part in (head, amount_text(done, total), *news) if part)
    if room and len(text) > room and total:
        return "  ".join(part for part in (head, f"{min(100, 100 * done // total)}%", *news) if part)
    cells = min(_BAR_CELLS, room - len(text) - 2) if room else _BAR_CELLS
    if not how.is_drawn or not total or cells < _FEWEST_CELLS:
        return text
    drawn = bar(done, total, is_unicode=how.is_unicode, cells=cells)
    return "  ".join(part for part in (head, drawn, text.removeprefix(head).lstrip()) if part)


def bar(done: int, total: int | None, *, is_unicode: bool, cells: int = _BAR_CELLS) -> str:
    """Return a progress bar; "" if the total is unknown."""
    if not total:
        return ""
    filled = min(cells, cells * done // total)
    full, empty = ("━", "╌") if is_unicode else ("#", ".")
    return full * filled + empty * (cells - filled)


def amount_text(done: int, total: int | None) -> str:
    """Return the done amount and the total."""
    if total is None:
        return format_size(done)
    return f"{format_size(min(done, total))} of {format_size(total)}"


def rate_text(bytes_per_s: float | None) -> str:
    """Return a rate in bytes per second."""
    return "" if bytes_per_s is None else f"{format_size(round(bytes_per_s))}/s"


def left_text(seconds: float | None) -> str:
    """Return the remaining time."""
    return "" if seconds is None else f"{format_duration(seconds)} left"


_KINDS = frozenset(
    {
        Kinds.DOWNLOAD_START,
        Kinds.DOWNLOAD_PROGRESS,
        Kinds.DOWNLOAD_RETRY,
        Kinds.DOWNLOAD_WAITING,
        Kinds.DOWNLOAD_DONE,
        Kinds.DOWNLOAD_FAILED,
    }
)
