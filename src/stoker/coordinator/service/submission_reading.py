"""Read a submission from its file: order by order, so that neither its text nor its parser holds the coordinator up.

A parser of JSON holds Python's lock (the GIL) until it is done, for seconds with a large text, and nothing else is
answered meanwhile. Here a few orders are parsed at a time. What is in memory beside the orders is a window of the text.
Sizes and counts are judged before values are made. What an order means is judged elsewhere (`queue.drafting`).
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from stoker.coordinator.service.intake import faults_of, read_message
from stoker.model.errors import BadInput
from stoker.model.fleet_errors import TooLarge
from stoker.model.json_text import loads
from stoker.model.units import format_size
from stoker.wire.codec import alike, values_in
from stoker.wire.orders import (
    MOST_JOBS,
    MOST_JOBS_AT_ONCE,
    MOST_ORDER_BYTES,
    MOST_ORDER_VALUES,
    MOST_SUBMISSION_BYTES,
    MOST_SUBMISSION_VALUES,
    JobOrder,
    Submission,
)

_PIECE_BYTES = 64 * 1024
_MOST_ORDER_MARKS = 3 * MOST_ORDER_VALUES
_MOST_FIELD_MARKS = MOST_JOBS + 1000
_SPACE = re.compile(r"[ \t\n\r]*")
_JOBS = "jobs"
_PARTS = "send it in parts, as `stoker submit` does"
_NEXT_ORDER = '},{"id":"'
_ORDERS = TypeAdapter(tuple[JobOrder, ...])
_scan = json.JSONDecoder().raw_decode


def read_submission(file: BinaryIO) -> Submission:
    """Read a submission.

    Raises `Faults` for what is wrong with it, as far as the first order with a fault, `BadInput` if it is not JSON, and
    `TooLarge` for more than one submission may have.
    """
    text = _Window(file)
    if not text.next():
        return read_message(Submission, b"")
    text.take("{")
    orders: list[JobOrder] | None = None
    rest: list[str] = []
    while text.next() != "}":
        key = text.value(_MOST_FIELD_MARKS, MOST_SUBMISSION_BYTES)
        text.take(":")
        if text.next() == "[" and loads(key) == _JOBS:
            orders = _read_orders(text)
        else:
            rest.append(f"{key}:{text.value(_MOST_FIELD_MARKS, MOST_SUBMISSION_BYTES)}")
        if text.next() != "}":
            text.take(",")
            text.refuse_end("}")
    text.take("}")
    if text.next():
        raise BadInput("the request is not JSON: something follows its end")
    if orders is not None:
        rest.append(f'"{_JOBS}":[]')
    submission = read_message(Submission, f"{{{','.join(rest)}}}".encode())
    return alike(submission, {_JOBS: tuple(orders)}) if orders is not None else submission


def _read_orders(text: _Window) -> list[JobOrder]:
    orders: list[JobOrder] = []
    are_ours = True
    text.take("[")
    while text.next() != "]":
        run = text.run() if are_ours else ""
        if run and (some := _read_run(run)):
            orders += some
            text.skip(len(run))
        else:
            # One after the other, to the end: to try again for each of them would take long.
            are_ours = are_ours and not run
            place = f"{_JOBS}.{len(orders)}"
            orders.append(_read_order(text.value(_MOST_ORDER_MARKS, MOST_ORDER_BYTES, place), place))
        if len(orders) > MOST_JOBS_AT_ONCE:
            raise TooLarge(f"the submission has more than {MOST_JOBS_AT_ONCE:,} jobs", hint=_PARTS)
        if text.next() != "]":
            text.take(",")
            text.refuse_end("]")
    text.take("]")
    return orders


def _read_run(text: str) -> tuple[JobOrder, ...]:
    """Return the orders that a text has, if it is nothing but whole orders without a fault; else none."""
    if '"$' in text:
        return ()
    try:
        return _ORDERS.validate_json(f"[{text}]")
    except ValidationError:
        return ()


def _read_order(text: str, place: str) -> JobOrder:
    try:
        # A tagged number: the longer way, as `wire.codec` goes it.
        return JobOrder.model_validate(loads(text)) if '"$' in text else JobOrder.model_validate_json(text)
    except ValidationError as error:
        raise faults_of(error, place) from None
    except ValueError as error:
        raise BadInput(f"the request is not JSON: {place}: {error}") from None


class _Window:
    """The text of a file, of which only the part that is being read is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._at = 0
        self._values = 0
        self._is_whole = False

    def next(self) -> str:
        """Return the next character that is no space, and go to it; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_on():
                return ""

    def take(self, mark: str) -> None:
        """Go past a mark. Raise `BadInput` if something else is next."""
        if (found := self.next()) != mark:
            raise BadInput(f"the request is not JSON: {mark!r} expected, found {found!r}")
        self._at += 1

    def refuse_end(self, mark: str) -> None:
        """Raise `BadInput` if a mark is next: a comma was before it."""
        if self.next() == mark:
            raise BadInput(f"the request is not JSON: a comma before {mark!r}")

    def run(self) -> str:
        """Return what is in memory up to the last place where one of our clients may have begun another order.

        It need not be the end of one: what else begins with an id, inside of an order, looks the same.
        """
        end = self._text.rfind(_NEXT_ORDER, self._at)
        return self._text[self._at : end + 1] if end >= 0 else ""

    def skip(self, length: int) -> None:
        """Go past so much text."""
        self._at += length

    def value(self, most_marks: int, most_bytes: int, place: str = "a field of the submission") -> str:
        """Return the text of the next value, and go past it.

        Raises `TooLarge` if it has more than so many values, as `values_in` counts them, or characters.
        """
        too_large = TooLarge(f"{place} has more than {format_size(most_bytes)}, or more than {most_marks:,} values")
        self.next()
        piece_bytes, end, why = _PIECE_BYTES, -1, ""
        while True:
            try:
                _, end = _scan(self._text, self._at)
            except RecursionError:
                raise BadInput("the request is not JSON: nested too deeply") from None
            except json.JSONDecodeError as error:
                # Unless the text just has not been read to its end.
                end, why = -1, error.msg
            except ValueError as error:
                end, why = -1, str(error)
            # A number may go on in what was not read yet.
            if end >= 0 and (end < len(self._text) or self._is_whole):
                break
            # All that is in memory belongs to this value.
            if len(self._text) - self._at > most_bytes or _marks_in(self._text, self._at) > most_marks:
                raise too_large
            # Twice as much each time: a long value is not scanned often.
            if not self._read_on(piece_bytes) and end < 0:
                raise BadInput(f"the request is not JSON: {why}")
            piece_bytes *= 2
        text, self._at = self._text[self._at : end], end
        if len(text) > most_bytes or (len(text) > most_marks and _marks_in(text) > most_marks):
            raise too_large
        return text

    def _read_on(self, size_bytes: int = _PIECE_BYTES) -> bool:
        """Read another piece of the file, and let go of what was used. False at the end of the file."""
        piece = self._file.read(size_bytes)
        self._values += values_in(piece)
        if self._values > MOST_SUBMISSION_VALUES:
            raise TooLarge(f"the submission has more than {MOST_SUBMISSION_VALUES:,} values", hint=_PARTS)
        was_whole, self._is_whole = self._is_whole, not piece
        try:
            self._text = self._text[self._at :] + self._decode(piece, not piece)
        except UnicodeDecodeError:
            raise BadInput("the request is not JSON: it is not UTF-8") from None
        self._at = 0
        return not (was_whole or self._is_whole)


def _marks_in(text: str, start: int = 0) -> int:
    return sum(text.count(mark, start) for mark in "[{,")
