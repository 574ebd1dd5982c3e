"""What an operator and a worker ask of a coordinator about a command inside a running job."""

from __future__ import annotations

from stoker.model.leases import Token
from stoker.wire.asking import DoneView, FileOffset
from stoker.wire.exec_sessions import ExecAsk, ExecBegun, ExecEnd, ExecInput, ExecListen, ExecOutput, ExecSize
from stoker.wire.speaking import Question, Speaker, part


class ExecCalls:
    """A part of a `FleetClient`."""

    _speaker: Speaker

    def begin_exec(self, ref: str, asked: ExecAsk) -> ExecBegun:
        """Begin a command inside a running job."""
        return self._speaker.ask(Question(path=f"/v1/jobs/{part(ref)}/exec", method="POST", body=asked), ExecBegun)

    def send_exec(self, session: str, data: bytes, *, offset: int, is_eof: bool = False) -> int:
        """Send what the command is to read, and give up to where it was taken: there may not be room for all."""
        told = {"offset": offset, "eof": int(is_eof) or None}
        path = f"/v1/exec/{part(session)}/in"
        question = Question(path=path, method="POST", body=data, query=told, is_repeatable=True)
        return self._speaker.ask(question, FileOffset).offset

    def read_exec(self, session: str, *, offset: int, wait_s: float = 0.0) -> ExecOutput:
        """Give what the command wrote from an offset on; wait for it if there is nothing yet."""
        told = {"offset": offset, "wait_s": wait_s}
        question = Question(path=f"/v1/exec/{part(session)}/out", query=told, waits_s=wait_s)
        return self._speaker.ask(question, ExecOutput)

    def size_exec(self, session: str, rows: int, columns: int) -> DoneView:
        """Say how large the operator's terminal is now."""
        size = ExecSize(rows=rows, columns=columns)
        path = f"/v1/exec/{part(session)}/size"
        return self._speaker.ask(Question(path=path, method="POST", body=size, is_repeatable=True), DoneView)

    def end_exec(self, session: str) -> DoneView:
        """End a session: its command is killed."""
        path = f"/v1/exec/{part(session)}"
        return self._speaker.ask(Question(path=path, method="DELETE", is_repeatable=True), DoneView)

    def hear_exec(self, job: str, session: str, said: ExecListen) -> ExecInput:
        """Give what a command is to read; for the worker that runs it."""
        path = f"/v1/attempts/{part(job)}/exec/{part(session)}/in"
        question = Question(path=path, method="POST", body=said, is_repeatable=True, waits_s=said.wait_s)
        return self._speaker.ask(question, ExecInput)

    def put_exec(self, token: Token, session: str, data: bytes, *, stream: int, offset: int, wait_s: float) -> int:
        """Send what a command wrote, and give up to where it was taken; held while there is no room."""
        told = {
            "attempt": token.attempt,
            "epoch": token.epoch,
            "generation": token.generation,
            "offset": offset,
            "stream": stream,
            "wait_s": wait_s,
        }
        path = f"/v1/attempts/{part(token.job)}/exec/{part(session)}/out"
        question = Question(path=path, method="PUT", body=data, query=told, is_repeatable=True, waits_s=wait_s)
        return self._speaker.ask(question, FileOffset).offset

    def finish_exec(self, job: str, session: str, said: ExecEnd) -> DoneView:
        """Tell how a command ended."""
        path = f"/v1/attempts/{part(job)}/exec/{part(session)}/end"
        return self._speaker.ask(Question(path=path, method="POST", body=said, is_repeatable=True), DoneView)
