"""A submission made ready before it is the writer's turn: ids checked, orders written as text, faults all at once.

Nothing here knows the database, so it is done in the asker's own thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

from stoker.host.names import name_fault, shown_name
from stoker.model.digests import digest_value
from stoker.model.errors import Faults
from stoker.model.faults import Fault
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps
from stoker.model.names import JOB_NAME_RULE, is_job_name
from stoker.wire.codec import alike
from stoker.wire.environments import choices_fault
from stoker.wire.identity import identity_fault
from stoker.wire.orders import MOST_ORDER_BYTES, JobOrder, Submission, values_fault

_MOST_INT = (1 << 31) - 1
_MOST_FAULTS = 100


@frozen
class Draft:
    """One order, ready to be stored."""

    order: JobOrder
    text: str
    """The order as it is stored: JSON, without its id."""
    code: str
    """The digest of its code; empty if it names none."""

    @property
    def shown(self) -> str:
        """What people call it."""
        return f"{self.order.name}/{self.order.number}" if self.order.number else self.order.name

    @property
    def placed_by(self) -> dict[str, Any]:
        """What decides its class, as its stored text has it."""
        order = self.order
        return {
            "name": order.name,
            "number": order.number,
            "recipe": order.recipe,
            "requirements": order.requirements.__dict__,
            "allowed_hosts": order.allowed_hosts,
            "prefer_hosts": order.prefer_hosts,
            "expected_s": order.expected_s,
            "environment": order.environment,
            "code_tree": order.code_tree,
            "commit": order.commit,
            "args": order.args,
            "inputs": order.inputs,
        }


@frozen
class Drafts:
    """All orders of a submission, each id once."""

    all: tuple[Draft, ...]
    payload: str
    """The digest of everything asked for, if it came with a key."""
    twins: dict[str, str]
    """Orders that are another one's job → what that one is called, by their own names."""


def draft(submission: Submission) -> Drafts:
    """Check a submission as far as it can be checked by itself.

    Raises `Faults`, with all that is wrong.
    """
    faults: list[Fault] = []
    drafts: dict[str, Draft] = {}
    twins: dict[str, str] = {}
    drafting = _Drafting()
    for at, order in enumerate(submission.jobs):
        why = _wrong(order)
        if why:
            faults.append(Fault(f"jobs[{at}] {order.name[:80]}", why))
            continue
        one = drafting.draft(order)
        if len(one.text) > MOST_ORDER_BYTES:
            why = f"it has {len(one.text):,} characters; {MOST_ORDER_BYTES:,} are the most"
            faults.append(Fault(f"jobs[{at}] {order.name[:80]}", why))
            continue
        first = drafts.setdefault(order.id, one)
        if first is not one:
            twins[one.shown] = first.shown
    faults += _circles(drafts.values())
    if faults:
        raise Faults(
            f"{len(faults)} of {len(submission.jobs)} jobs can't be taken",
            faults=tuple(faults[:_MOST_FAULTS]),
            count=len(faults),
            hint="nothing was submitted",
        )
    payload = _payload(submission, drafts) if submission.key else ""
    return Drafts(all=tuple(drafts.values()), payload=payload, twins=twins)


def called_as(draft: Draft, name: str, number: int, label: str, point: dict[str, Any]) -> Draft:
    """Give the same order under another name, perhaps as a point of another sweep."""
    order = alike(draft.order, {"name": name, "number": number, "label": label, "point": point})
    return Draft(order=order, text=_text(order), code=draft.code)


def _payload(submission: Submission, drafts: Mapping[str, Draft]) -> str:
    """Digest everything that is asked for but the key: the rest of it, then each order as its id and its text."""
    digest = sha256(submission.model_dump_json(exclude={"key", "jobs"}).encode())
    for order in submission.jobs:
        one = drafts[order.id]
        text = one.text if one.order is order else _text(order)
        digest.update(f"\n{order.id} {text}".encode())
    return digest.hexdigest()


class _Drafting:
    """Makes drafts; what all jobs of a submission have in common is made once."""

    def __init__(self) -> None:
        self._codes: dict[tuple[tuple[str, str], ...], str] = {}

    def draft(self, order: JobOrder) -> Draft:
        return Draft(order=order, text=_text(order), code=self._code(order.code) if order.code else "")

    def _code(self, code: dict[str, str]) -> str:
        key = tuple(code.items())
        known = self._codes.get(key)
        if known is None:
            known = self._codes[key] = digest_value("job code", code)
        return known


_write = JobOrder.__pydantic_serializer__.to_json
_NOT_STORED = {"id"}


def _text(order: JobOrder) -> str:
    """Give an order as it is stored."""
    # pydantic's writer itself: its method of the model looks at a dozen options first.
    text = str(_write(order, exclude=_NOT_STORED), "utf-8")
    if "NaN" in text or "Infinity" in text or '"$' in text:
        # Those are written otherwise in our own JSON.
        text = dumps(order.model_dump(mode="json", exclude=_NOT_STORED))
    return text


def _wrong(order: JobOrder) -> str:
    return (
        _wrongly_called(order)
        or values_fault(order)
        or choices_fault(order.environment)
        or identity_fault(order.id, order)
    )


def _wrongly_called(order: JobOrder) -> str:
    """Say what is wrong with what people will know a job by: its name and label become folders, and are typed."""
    if order.number > _MOST_INT:
        return f"number {order.number} is too large"
    if not is_job_name(order.name):
        return f"no name for a job: {JOB_NAME_RULE}"
    if order.label and (fault := "it has a slash" if "/" in order.label else name_fault(order.label)):
        return f"its label can't be a folder's name: {fault}"
    for word, text in (("recipe", order.recipe), ("mode", order.mode)):
        if not text.isprintable():
            return f"its {word} {shown_name(text)} has a character that can't be shown"
    return ""


def _circles(drafts: Collection[Draft]) -> list[Fault]:
    """Find jobs of one submission that wait for themselves, directly or through others.

    A word in `after` stands for all jobs of that name: it is a place of its own on the way, so that a thousand jobs
    that wait for a thousand are two thousand steps and not a million.
    """
    if not any(one.order.after for one in drafts):
        return []
    jobs: dict[str, list[str]] = {}
    """Word → the jobs that it stands for, as `name/number`."""
    words: dict[str, tuple[str, ...]] = {}
    """Job → the words that it waits for."""
    for one in drafts:
        place = f"{one.order.name}/{one.order.number}"
        words[place] = one.order.after
        for word in {one.order.name, one.shown}:
            jobs.setdefault(word, []).append(place)
    steps: dict[tuple[str, bool], list[tuple[str, bool]]] = {
        **{(word, False): [(place, True) for place in places] for word, places in jobs.items()},
        **{(place, True): [(word, False) for word in after if word in jobs] for place, after in words.items()},
    }
    done: set[tuple[str, bool]] = set()
    return [
        Fault(circle[0], f"waits for itself: {' → '.join(circle)}")
        for start in steps
        if start not in done and (circle := _circle_from(start, steps, done))
    ]


def _circle_from(
    start: tuple[str, bool], steps: dict[tuple[str, bool], list[tuple[str, bool]]], done: set[tuple[str, bool]]
) -> list[str]:
    """Walk along what somebody waits for; gives the words on the way back to one that was met, if there is one."""
    path: dict[tuple[str, bool], None] = {}
    stack: list[tuple[tuple[str, bool], bool]] = [(start, False)]
    while stack:
        at, is_left = stack.pop()
        if is_left:
            del path[at]
            done.add(at)
        elif at in path:
            way = list(path)
            done.update(way)
            circle = [word for word, is_job in way[way.index(at) :] if not is_job]
            return [*circle, circle[0]]
        elif at not in done:
            path[at] = None
            stack.append((at, True))
            stack += [(step, False) for step in steps[at]]
    return []
