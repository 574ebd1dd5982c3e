"""Commands that operators run inside running jobs: what operator, coordinator and worker tell each other.

A session is two streams of bytes, one into the command and one out of it, each counted from its beginning: what was
sent twice counts once, and what was not heard is asked for again.
"""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import Field

from stoker.wire.leasing import Count, ExitCode, Fact, Rows, Tokened
from stoker.wire.protocol import Asked, Message

EXEC = "exec"
"""Among `Hello.features`: this worker knows sessions."""
PIECE_BYTES = 48 * 1024
"""The most that is sent in one request."""
READ_BYTES = 256 * 1024
"""The most that one answer holds."""
MOST_WAIT_S = 30.0
OUT, ERROR = 1, 2
"""The two streams that a command without a terminal writes; with one, everything is `OUT`."""

Wait = Annotated[float, Field(ge=0, le=MOST_WAIT_S)]


class ExecAsk(Asked):
    """Run a command in a running job's folder and environment."""

    argv: Annotated[tuple[Annotated[str, Field(max_length=32_768)], ...], Field(max_length=1000)] = ()
    """Nothing: a shell."""
    is_tty: bool = False
    rows: Rows = 24
    columns: Rows = 80
    term: Fact = ""
    by: Annotated[str, Field(max_length=200)] = ""


class ExecBegun(Message):
    """A session that its machine is about to hear of."""

    id: str
    job: str
    name: str
    machine: str
    attempt: int


class ExecSize(Asked):
    """The operator's terminal has another size now."""

    rows: Rows
    columns: Rows


class ExecListen(Tokened):
    """A worker waits for what its command is to read."""

    offset: Count
    """It has everything before this."""
    rows: Rows = 24
    columns: Rows = 80
    is_eof: bool = False
    """What it knows already: another answer comes at once."""
    wait_s: Wait = 0.0


class ExecInput(Message):
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


class ExecEnd(Tokened):
    """The command has ended, or did not begin."""

    exit_code: ExitCode
    message: Annotated[str, Field(max_length=2000)] = ""


class ExecPiece(Message):
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


class ExecOutput(Message):
    """What a command wrote from some offset on, and how it stands."""

    pieces: tuple[ExecPiece, ...] = ()
    is_taken: bool = False
    """Its machine has taken it up."""
    exit_code: int | None = None
    """Everything was read, and the command has ended with this."""
    why: str = ""
    """Of one that ended: what there is to say about it."""
