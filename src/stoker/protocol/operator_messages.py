"""Commands that operators run inside running jobs: what operator, coordinator and worker tell each other.

A session is two streams of bytes, one into the command and one out of it, each counted from its beginning: what was
sent twice counts once, and what was not heard is asked for again.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

from pydantic import Field

from stoker.protocol.codec import StrictRequest, WireMessage
from stoker.protocol.job_messages import JobId
from stoker.protocol.lease_messages import Count, ExitCode, Fact, LeaseTokenMessage, Name, Rows
from stoker.protocol.view_messages import By, Line, Seconds, ViewCount

# How machines are, and who is told of what happens: reports of workers, symptoms, hooks, and the checker's verdict.

ALL_WORDS = ("submitted", "started", "completed", "failed", "cancelled", "retrying", "symptom", "machine", "trust")
"""What a hook can be told of."""
USUAL_WORDS = ("completed", "failed", "cancelled", "symptom")
MOST_HOOKED_JOBS = 10_000


class DoctorFinding(WireMessage):
    """One line of what a machine's `stoker doctor` says."""

    name: Fact
    verdict: Fact
    """ok, warn or bad."""
    message: Annotated[str, Field(max_length=1000)] = ""
    hint: Annotated[str, Field(max_length=1000)] = ""


class MachineReport(WireMessage):
    """What a worker found out about its machine: at its start, and once a day."""

    worker: Name
    version: Fact = ""
    protocol: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    wall_s: float
    """Its clock when it sent this, to show how far it is off; nothing is decided by it."""
    findings: Annotated[tuple[DoctorFinding, ...], Field(max_length=200)] = ()


class WebhookRequest(StrictRequest):
    """Tell somebody elsewhere of events, by POST requests with a signature."""

    url: Annotated[str, Field(min_length=8, max_length=2000)]
    on: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Words of `ALL_WORDS`; none: the usual ones."""
    jobs: Annotated[tuple[JobId, ...], Field(max_length=MOST_HOOKED_JOBS)] = ()
    """Of these alone, and until all of them have ended."""
    by: By = ""


class WebhookView(WireMessage):
    """A hook, without its secret."""

    id: ViewCount
    url: Line
    on: tuple[Line, ...] = ()
    jobs: ViewCount = 0
    """How many it is for; 0: for all."""
    cursor: ViewCount
    failures: ViewCount = 0
    last_error: Line = ""
    made_s: Seconds
    closed_s: Seconds | None = None
    by: Line = ""


class WebhookResponse(WireMessage):
    """A new hook; what signs its messages is told this once."""

    hook: WebhookView
    secret: str


class WebhookList(WireMessage):
    """All hooks."""

    hooks: tuple[WebhookView, ...] = ()


class WebhookTestResult(WireMessage):
    """What became of a message that was sent to try a hook."""

    is_delivered: bool
    status: ViewCount = 0
    message: Line = ""


class HistoryCheck(WireMessage):
    """What the history checker found."""

    jobs: ViewCount
    """How many it looked at: the newest."""
    is_whole: bool
    """Those were all."""
    seconds: Seconds
    rules: dict[Line, ViewCount]
    """Every promise, with how often it was broken."""
    violations: tuple[dict[str, Any], ...] = ()
    """The first of them, with the rows that show them."""

    @property
    def is_clean(self) -> bool:
        return not any(self.rules.values())


EXEC = "exec"
"""Among `Hello.features`: this worker knows sessions."""
EXEC_PIECE_BYTES = 48 * 1024
"""The most that is sent in one request."""
READ_BYTES = 256 * 1024
"""The most that one answer holds."""
EXEC_MOST_WAIT_S = 30.0
OUT, ERROR = 1, 2
"""The two streams that a command without a terminal writes; with one, everything is `OUT`."""

Wait = Annotated[float, Field(ge=0, le=EXEC_MOST_WAIT_S)]


class ExecRequest(StrictRequest):
    """Run a command in a running job's folder and environment."""

    argv: Annotated[tuple[Annotated[str, Field(max_length=32_768)], ...], Field(max_length=1000)] = ()
    """Nothing: a shell."""
    is_tty: bool = False
    rows: Rows = 24
    columns: Rows = 80
    term: Fact = ""
    by: Annotated[str, Field(max_length=200)] = ""


class ExecResponse(WireMessage):
    """A session that its machine is about to hear of."""

    id: str
    job: str
    name: str
    machine: str
    attempt: int


class ExecSize(StrictRequest):
    """The operator's terminal has another size now."""

    rows: Rows
    columns: Rows


class ExecListen(LeaseTokenMessage):
    """A worker waits for what its command is to read."""

    offset: Count
    """It has everything before this."""
    rows: Rows = 24
    columns: Rows = 80
    is_eof: bool = False
    """What it knows already: another answer comes at once."""
    wait_s: Wait = 0.0


class ExecInput(WireMessage):
    """What a command is to read, and what else its operator did."""

    data_base64: str = ""
    is_eof: bool = False
    """Nothing follows behind these bytes."""
    rows: int = 24
    columns: int = 80
    over: str = ""
    """Why the session has ended: the command is not wanted any more. Empty: it goes on."""

    @property
    def data(self) -> bytes:
        """What it is to read."""
        return base64.b64decode(self.data_base64)


class ExecEnd(LeaseTokenMessage):
    """The command has ended, or did not begin."""

    exit_code: ExitCode
    message: Annotated[str, Field(max_length=2000)] = ""


class ExecPiece(WireMessage):
    """Some bytes of what a command wrote."""

    stream: int
    data_base64: str

    @classmethod
    def of(cls, stream: int, data: bytes) -> ExecPiece:
        """Make it of bytes."""
        return cls(stream=stream, data_base64=base64.b64encode(data).decode())

    @property
    def data(self) -> bytes:
        """What it wrote."""
        return base64.b64decode(self.data_base64)


class ExecOutput(WireMessage):
    """What a command wrote from some offset on, and how it stands."""

    pieces: tuple[ExecPiece, ...] = ()
    is_taken: bool = False
    """Its machine has taken it up."""
    exit_code: int | None = None
    """Everything was read, and the command has ended with this."""
    why: str = ""
    """Of one that ended: what there is to say about it."""
