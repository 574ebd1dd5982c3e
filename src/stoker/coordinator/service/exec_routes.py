"""Routes of commands inside running jobs: begun and followed by operators, run by the worker that holds the lease."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.exec_commands import BeginExec, EndExec
from stoker.coordinator.service.answers import BYTES_BODY, Ref, answer, done
from stoker.coordinator.service.exec_desk import ExecDesk, Opened, Session
from stoker.coordinator.service.file_routes import Offset
from stoker.coordinator.service.intake import headers_of, read_body
from stoker.coordinator.service.lease_token import LeaseToken
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.who import Who, recorded
from stoker.model.errors import IllegalMove, StokerError
from stoker.wire.asking import DoneView, FileOffset
from stoker.wire.exec_sessions import (
    ERROR,
    MOST_WAIT_S,
    OUT,
    PIECE_BYTES,
    ExecAsk,
    ExecBegun,
    ExecEnd,
    ExecInput,
    ExecListen,
    ExecOutput,
    ExecSize,
)
from stoker.wire.leasing import ExecCall

SHELL = "a shell"
_DONE = Done()

Wait = Annotated[float, Query(ge=0, le=MOST_WAIT_S)]


class ExecRoutes:
    """Answers them."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._desk: ExecDesk = office.execs
        self._desk.on_end = self._note_end
        self._noting: set[asyncio.Task[None]] = set()
        self.router = APIRouter(tags=["exec"])
        add = self.router.add_api_route
        add("/v1/jobs/{ref}/exec", self.begin, methods=["POST"], response_model=ExecBegun)
        add("/v1/exec/{session}/in", self.send, methods=["POST"], response_model=FileOffset, openapi_extra=BYTES_BODY)
        add("/v1/exec/{session}/out", self.read, response_model=ExecOutput)
        add("/v1/exec/{session}/size", self.resize, methods=["POST"], response_model=DoneView)
        add("/v1/exec/{session}", self.end, methods=["DELETE"], response_model=DoneView)
        place = "/v1/attempts/{job}/exec/{session}"
        add(f"{place}/in", self.listen, methods=["POST"], response_model=ExecInput)
        add(f"{place}/out", self.put, methods=["PUT"], response_model=FileOffset, openapi_extra=BYTES_BODY)
        add(f"{place}/end", self.finish, methods=["POST"], response_model=DoneView)

    async def begin(self, ref: Ref, who: Who, asked: ExecAsk) -> Response:
        """Begin a command inside a running job: its machine takes it up in a moment."""
        office = self._office
        found = await office.read(office.reader.find_all, ref)
        if len(found) > 1:
            raise IllegalMove(f"{ref} has {len(found):,} points", hint=f"name one of them: {ref}/1", move="exec")
        job, id, by = found[0].id, secrets.token_hex(16), recorded(who, asked.by)
        self._desk.check(job, await self._machine_of(job))
        program = os.path.basename(asked.argv[0]) if asked.argv else SHELL
        where = (await office.ask(BeginExec(job=job, session=id, program=program, by=by))).data
        call = ExecCall(
            id=id,
            job=job,
            attempt=where["attempt"],
            epoch=where["epoch"],
            generation=where["generation"],
            argv=asked.argv,
            is_tty=asked.is_tty,
            rows=asked.rows,
            columns=asked.columns,
            term=asked.term,
        )
        self._desk.open(call, Opened(machine=where["machine"], name=where["name"], by=by, person=who.name))
        office.waiting.call((where["machine"],))
        return answer(ExecBegun(id=id, job=job, name=where["name"], machine=where["machine"], attempt=where["attempt"]))

    async def send(
        self, request: Request, session: str, who: Who, offset: Offset, eof: Annotated[int, Query(ge=0, le=1)] = 0
    ) -> Response:
        """Send what the command is to read; the answer says how much of it there was room for."""
        data = await read_body(request.receive, headers_of(request.scope), PIECE_BYTES)
        one = self._desk.of_operator(session, who.name)
        return answer(FileOffset(offset=self._desk.send(one, offset, data, is_eof=bool(eof))))

    async def read(self, session: str, who: Who, offset: Offset = 0, wait_s: Wait = 0.0) -> Response:
        """Give what the command wrote, and in the end how it ended."""
        one = self._desk.of_operator(session, who.name)
        return answer(await self._desk.read(one, offset, wait_s))

    async def resize(self, session: str, who: Who, asked: ExecSize) -> Response:
        """Tell the size of the operator's terminal."""
        self._desk.resize(self._desk.of_operator(session, who.name), asked.rows, asked.columns)
        return done(_DONE)

    async def end(self, session: str, who: Who) -> Response:
        """End a session: its command is killed."""
        self._desk.end(self._desk.of_operator(session, who.name), "whoever began it has ended it")
        return done(_DONE)

    async def listen(self, job: str, session: str, who: Who, said: ExecListen) -> Response:
        """Wait for what a command is to read; for the worker that runs it."""
        one = self._desk.of_worker(session, said.token(job), who.name)
        return answer(await self._desk.listen(one, said))

    async def put(  # noqa: PLR0913, PLR0917 - a token, a place and bytes
        self,
        request: Request,
        who: Who,
        token: LeaseToken,
        session: str,
        offset: Offset,
        stream: Annotated[int, Query(ge=OUT, le=ERROR)] = OUT,
        wait_s: Wait = 0.0,
    ) -> Response:
        """Send what a command wrote; held while the operator has not read what came before."""
        data = await read_body(request.receive, headers_of(request.scope), PIECE_BYTES)
        one = self._desk.of_worker(session, token, who.name)
        return answer(FileOffset(offset=await self._desk.put(one, offset, data, stream=stream, wait_s=wait_s)))

    async def finish(self, job: str, session: str, who: Who, said: ExecEnd) -> Response:
        """Tell how a command ended."""
        one = self._desk.of_worker(session, said.token(job), who.name)
        self._desk.end(one, said.message, said.exit_code)
        return done(_DONE)

    async def _machine_of(self, job: str) -> str:
        office = self._office
        tries = await office.read(office.reader.attempts_of, job)
        return tries[-1].machine if tries else ""

    def _note_end(self, session: Session) -> None:
        """Write down that a command has ended; nobody waits for it."""
        noting = asyncio.ensure_future(self._write_end(session))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    async def _write_end(self, session: Session) -> None:
        call, opened = session.call, session.opened
        ended = EndExec(
            token=call.token(),
            session=call.id,
            machine=opened.machine,
            program=os.path.basename(call.argv[0]) if call.argv else SHELL,
            exit_code=session.exit_code,
            why=session.why,
            by=opened.by,
        )
        with suppress(StokerError):
            await self._office.ask(ended)
