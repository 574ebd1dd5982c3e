"""Manifests that are sent as text, and jobs that are submitted again with other values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stoker.core.text import LONGEST_NAME
from stoker.protocol.codec import StrictRequest, WireMessage
from stoker.protocol.job_messages import MOST_TEXT, OnChangedCode, SubmissionResponse
from stoker.protocol.view_messages import Line, ViewCount

MOST_MANIFEST = 2 << 20
"""Characters."""
MOST_MANIFEST_BYTES = 5 << 20
"""Of the request, in which a text has escapes."""
_MOST_WORDS = 1000
_LONGEST_WORD = 8192

Word = Annotated[str, Field(max_length=_LONGEST_WORD)]


class ManifestRequest(StrictRequest):
    """A manifest to check or to submit."""

    name: Annotated[str, Field(max_length=200, pattern=r"^[^/\\\x00-\x1f\x7f]+\.(toml|yaml|yml)$")] = "manifest.toml"
    """What the file is called: its end tells the language."""
    text: Annotated[str, Field(max_length=MOST_MANIFEST)]
    on_changed_code: OnChangedCode = OnChangedCode.KEEP
    submitter: Annotated[str, Field(max_length=200)] = ""
    """`user@host`, as reported by the client."""
    dry_run: bool = False
    """Return what would be submitted, and submit nothing."""


class FaultView(WireMessage):
    """One validation error."""

    line: ViewCount = 0
    """From 1; 0: it has no line."""
    column: ViewCount = 0
    key: Line = ""
    """`jobs[0].sweep.lr`, or the name of an argument."""
    message: Line
    hint: Line = ""
    shown: str = ""
    """The line itself, with carets under it."""


class ManifestEntry(WireMessage):
    """One job of a manifest, as it stands there."""

    name: Line
    line: ViewCount
    does: Line
    """Its recipe, or its program."""
    count: ViewCount = 1
    """How many jobs its sweep makes."""
    faults: ViewCount = 0
    why_not: Line = ""
    """Why it has to be submitted from its folder; empty: it can be from anywhere."""


class ManifestView(WireMessage):
    """A manifest that was checked, and what submitting it changes."""

    name: Line
    entries: tuple[ManifestEntry, ...] = ()
    more: ViewCount = 0
    """Number of entries that are not listed."""
    faults: tuple[FaultView, ...] = ()
    fault_count: ViewCount = 0
    notes: tuple[Line, ...] = ()
    command: Line = ""
    """What does the same in the manifest's folder."""
    answer: SubmissionResponse | None = None
    """None: nothing can be submitted."""


class RepeatSetting(WireMessage):
    """A value that can be changed."""

    path: Line
    text: str
    """As it is typed."""


class RepeatForm(WireMessage):
    """What can be different if a job is submitted again."""

    job: Line
    name: Line
    """What the new one is called."""
    settings: tuple[RepeatSetting, ...] = ()
    program: str = ""
    """The program's command line, with places such as `{lr}`; empty: a recipe."""
    command: Line = ""
    can_submit: bool = True
    """It can be submitted here; else `command` does it on a terminal."""
    notes: tuple[Line, ...] = ()


class RepeatJobRequest(StrictRequest):
    """A job again, with other values."""

    changes: Annotated[tuple[Word, ...], Field(max_length=_MOST_WORDS)] = ()
    """`key=value`, as on a command line."""
    program: Annotated[str, Field(max_length=MOST_TEXT)] | None = None
    """Of a program: its command line with its places, split as a shell does; omitted: the one that it has."""
    name: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    """Omitted: as the job is called."""
    submitter: Annotated[str, Field(max_length=200)] = ""
    dry_run: bool = False
    """Return what would be submitted, and submit nothing."""


class RepeatView(WireMessage):
    """A job that would be submitted again, or was."""

    job: Line
    """What the new job is called."""
    differs: tuple[Line, ...] = ()
    """What differs from the old one: `lr: 0.1 → 0.2`."""
    faults: tuple[FaultView, ...] = ()
    notes: tuple[Line, ...] = ()
    command: Line = ""
    """What does the same on a terminal."""
    answer: SubmissionResponse | None = None
    """None: nothing can be submitted here."""
