"""Messages about health, webhooks, the history check, log-ins of web pages, and commands in jobs (exec sessions).

An exec session is two byte streams, input and output of the command, each with offsets from its beginning: bytes that
are sent twice count once, and bytes that were lost are requested again.
"""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from stoker.protocol.codec import StrictRequest, WireMessage
from stoker.protocol.job_messages import JobId
from stoker.protocol.lease_messages import Count, ExitCode, Fact, LeaseTokenMessage, Name, Rows
from stoker.protocol.view_messages import By, FiniteSeconds, Line, ViewCount

ALL_WORDS = (
    "submitted",
    "started",
    "completed",
    "failed",
    "cancelled",
    "retrying",
    "symptom",
    "machine",
    "lost",
    "trust",
)
"""What a webhook can subscribe to. `lost` is the part of `machine` about machines that fell silent."""
USUAL_WORDS = ("completed", "failed", "cancelled", "symptom")
PERSON_WORDS = ("completed", "failed", "cancelled", "symptom", "lost")
"""The default of formats that people read."""
MOST_HOOKED_JOBS = 10_000


class DoctorFinding(WireMessage):
    """One line of a machine's `stoker doctor`."""

    name: Fact
    verdict: Fact
    """ok, warn or bad."""
    message: Annotated[str, Field(max_length=1000)] = ""
    hint: Annotated[str, Field(max_length=1000)] = ""


class MachineReport(WireMessage):
    """A worker's report about its machine: at its start, and once a day."""

    worker: Name
    version: Fact = ""
    protocol: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    wall_s: float
    """Its clock when it sent this, to show the offset; no decision uses it."""
    findings: Annotated[tuple[DoctorFinding, ...], Field(max_length=200)] = ()


class NotifyFormat(StrEnum):
    """How a notification is written."""

    STOKER = "stoker"
    """Our own: a signed event as JSON."""
    SLACK = "slack"
    DISCORD = "discord"
    TEAMS = "teams"
    NTFY = "ntfy"
    MAIL = "mail"
    """A message for a program that sends mail."""


class WebhookRequest(StrictRequest):
    """Create a webhook: POST requests for events, or mails."""

    url: Annotated[str, Field(max_length=2000)] = ""
    """Empty only with `mail`."""
    format: NotifyFormat | None = None
    """None: by the URL."""
    mail: Annotated[tuple[Annotated[str, Field(max_length=4000)], ...], Field(max_length=100)] = ()
    """A command that sends the message on its standard input; only from the coordinator's own machine and user."""
    on: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Words of `ALL_WORDS` (default: `USUAL_WORDS`)."""
    jobs: Annotated[tuple[JobId, ...], Field(max_length=MOST_HOOKED_JOBS)] = ()
    """Only for these jobs, and until all of them have ended."""
    by: By = ""


class WebhookView(WireMessage):
    """A webhook, without its secret."""

    id: ViewCount
    url: Line
    format: Line = "stoker"
    on: tuple[Line, ...] = ()
    jobs: ViewCount = 0
    """Number of jobs it is for; 0: all."""
    cursor: ViewCount
    failures: ViewCount = 0
    last_error: Line = ""
    made_s: FiniteSeconds
    closed_s: FiniteSeconds | None = None
    by: Line = ""


class WebhookResponse(WireMessage):
    """A new webhook, with its secret, which is shown once."""

    hook: WebhookView
    secret: str


class WebhookList(WireMessage):
    """All webhooks."""

    hooks: tuple[WebhookView, ...] = ()


class WebhookTestResult(WireMessage):
    """The result of a test message to a webhook."""

    is_delivered: bool
    status: ViewCount = 0
    message: Line = ""


class HistoryCheck(WireMessage):
    """The result of the history checker."""

    jobs: ViewCount
    """Number of jobs checked, the newest first."""
    is_whole: bool
    """These were all jobs."""
    seconds: FiniteSeconds
    rules: dict[Line, ViewCount]
    """Every rule, with its number of violations."""
    violations: tuple[dict[str, Any], ...] = ()
    """The first violations, with their rows."""

    @property
    def is_clean(self) -> bool:
        return not any(self.rules.values())


EXEC = "exec"
"""Among `Hello.features`: this worker supports exec sessions."""
EXEC_PIECE_BYTES = 48 * 1024
"""Limit of one request."""
READ_BYTES = 256 * 1024
"""Limit of one response."""
EXEC_MOST_WAIT_S = 30.0
OUT, ERROR = 1, 2
"""The two output streams of a command without a terminal; with one, all output is `OUT`."""

Wait = Annotated[float, Field(ge=0, le=EXEC_MOST_WAIT_S)]


class ExecRequest(StrictRequest):
    """Run a command in a running job's folder and environment."""

    argv: Annotated[tuple[Annotated[str, Field(max_length=32_768)], ...], Field(max_length=1000)] = ()
    """Empty: a shell."""
    is_tty: bool = False
    rows: Rows = 24
    columns: Rows = 80
    term: Fact = ""
    by: Annotated[str, Field(max_length=200)] = ""


class ExecResponse(WireMessage):
    """A new session; its machine does not know it yet."""

    id: str
    job: str
    name: str
    machine: str
    attempt: int


class ExecSize(StrictRequest):
    """The operator's terminal was resized."""

    rows: Rows
    columns: Rows


class ExecListen(LeaseTokenMessage):
    """A worker's request for input of its command."""

    offset: Count
    """It has all bytes before this."""
    rows: Rows = 24
    columns: Rows = 80
    is_eof: bool = False
    """What the worker knows already: a change is returned at once."""
    wait_s: Wait = 0.0


class ExecInput(WireMessage):
    """Input of a command, terminal size, and end of the session."""

    data_base64: str = ""
    is_eof: bool = False
    """The input ends after these bytes."""
    rows: int = 24
    columns: int = 80
    over: str = ""
    """Why the session has ended and the command must stop. Empty: it continues."""

    @property
    def data(self) -> bytes:
        """The input bytes."""
        return base64.b64decode(self.data_base64)


class ExecEnd(LeaseTokenMessage):
    """The command has ended, or could not start."""

    exit_code: ExitCode
    message: Annotated[str, Field(max_length=2000)] = ""


class ExecPiece(WireMessage):
    """Some output bytes of a command."""

    stream: int
    data_base64: str

    @classmethod
    def of(cls, stream: int, data: bytes) -> ExecPiece:
        """Return a piece with the bytes."""
        return cls(stream=stream, data_base64=base64.b64encode(data).decode())

    @property
    def data(self) -> bytes:
        """The output bytes."""
        return base64.b64decode(self.data_base64)


class ExecOutput(WireMessage):
    """Output of a command from an offset on, and its state."""

    pieces: tuple[ExecPiece, ...] = ()
    is_taken: bool = False
    """Its machine has started it."""
    exit_code: int | None = None
    """All output was read, and the command ended with this code."""
    why: str = ""
    """A message about a session that ended."""


# Log-ins of web pages.


class LoginRequest(StrictRequest):
    """Log in a web page, by a token or a one-time code."""

    token: Annotated[str, Field(max_length=200)] = ""
    code: Annotated[str, Field(max_length=200)] = ""


class LoginView(WireMessage):
    """Who a request comes from."""

    user: Line = ""
    """Empty: the coordinator's own user."""
    role: Line
    """Empty: no one is logged in."""
    expires_s: FiniteSeconds | None = None
    """When the session of a web page ends; None: a token or the Unix socket was used."""
    key: Line = ""
    """Of a session that begins: the page sends it in `X-Stoker-Page` with every change."""


class CodeRequest(StrictRequest):
    """Make a one-time code for the log-in of a web page."""

    role: Annotated[str, Field(max_length=20)] = ""
    """At most one's own (default: one's own)."""


class CodeView(WireMessage):
    """A one-time code."""

    code: Line
    life_s: FiniteSeconds
    role: Line
    url: Line = ""
    """The public address of the pages; empty: that of the request."""
