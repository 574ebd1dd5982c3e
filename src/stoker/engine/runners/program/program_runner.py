"""Stages that are programs: started in a box, listened to, stopped for certain, and judged by how they ended.

The program is a child of ours, the leader of a session, inside its box before its first instruction. Whatever it does
(print gigabytes, leave children behind, ignore requests to end, eat memory), when `run` returns nothing of it runs and
what it said is in its log, as far as that has room. If we are killed ourselves, the box's cleanup shell ends it.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

from stoker.core.clock import Clock
from stoker.core.digests import Digest
from stoker.core.errors import InternalError, ProcessLost, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.retry import FailureCause
from stoker.core.text import METRICS_OFF, format_size, is_metric_pattern, one_line
from stoker.engine.metrics.written import WrittenMetrics
from stoker.engine.program import DeclaredOutputs, Program, output_locks, split_gang_words, tidy_out
from stoker.engine.runners.program.found_checkpoints import CheckpointFinder, KeptCheckpoint, put_back
from stoker.engine.runners.program.launch import (
    ControlFile,
    Launch,
    ProgramContext,
    ProgramWatch,
    find_launch,
    remove_if_odd,
    render_launch,
)
from stoker.engine.runners.program.output import ProgramCheckpointStore, ProgramOutput
from stoker.engine.runners.program.program_end import (
    ProgramExit,
    failure_of_outputs,
    failure_of_program,
    manifest_of_program,
    went_silent,
)
from stoker.engine.runners.program.sandbox import RunAsFolders
from stoker.engine.runners.stage_runner import AttemptUsage, StageAttempt, StageFailure, StageSuccess, Work, failure_of
from stoker.engine.scratch import OURS, Scratch, choose_checkpoint, open_scratch
from stoker.engine.stage import Stage, StageContext, perform
from stoker.host.containment.box import MARK, ContainedGroup, Containment, ContainmentLimits, ContainmentReading
from stoker.host.durable import remove_tree, translated
from stoker.host.identity import ProcessExit, mine
from stoker.host.interpreter import missing_script, no_script
from stoker.host.processes import Child, ask_group, start, stop_group
from stoker.host.user_switch import end_everybody_of, start_as
from stoker.host.users import OtherUser, acting_as, give_to, remove_leftovers, take_back
from stoker.host.writers import LogFile

_NOT_YET = "/dev/null/not-yet"
"""Stands for the result folder while a program is only checked; no file can be below it."""
_STOPPED_EARLY = StageFailure(cause=FailureCause.CANCELLED, message="it was stopped before it began")


class ProgramRunner:
    """Starts one program per attempt."""

    is_here = False

    def __init__(self, around: ProgramContext, containment: Callable[[], Containment], clock: Clock) -> None:
        self._around = around
        self._containment = containment
        self._clock = clock

    def check(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> None:
        """Refuse programs that can't be started here, before anything runs."""
        self.launches(works)

    def launches(self, works: Mapping[str, tuple[Stage, Mapping[str, Any]]]) -> list[Launch]:
        """Return how programs start; trials of one program are one. Raises as `find_launch` does.

        Raises `ProgramNotFound` also for a missing script of an interpreter, unless another user's program would run
        it: what exists for that user is not known here.
        """
        seen = set()
        found = []
        for node, (stage, args) in works.items():
            nowhere = StageContext(node=node, out=_NOT_YET, emit=lambda _: None, is_cancelled=lambda: False)
            program = _render(stage, nowhere, {}, args)
            _, words = split_gang_words(program.argv)
            script = missing_script(words, program.folder) if self._around.user is None else ""
            if script and not script.startswith(_NOT_YET):
                raise no_script(script, program.folder)
            likes = (words[0], program.folder, program.python, tuple(program.env.items()), program.outputs)
            if likes not in seen:
                seen.add(likes)
                found.append(find_launch(program, self._around))
        return found

    def attempt(self, work: Work) -> StageAttempt:
        if self._around.user is not None:
            return _AttemptOfAnother(self._around.user, work, self._around, self._containment, self._clock)
        return _ProgramAttempt(work, self._around, self._containment, self._clock)


@frozen
class _Seen:
    """A program that has ended, as far as it was seen."""

    ended: ProcessExit
    reading: ContainmentReading
    watch: ProgramWatch
    complaint: str


class _ProgramAttempt:
    def __init__(
        self, work: Work, around: ProgramContext, containment: Callable[[], Containment], clock: Clock
    ) -> None:
        self._work = work
        self._around = around
        self._containment = containment
        self._clock = clock
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._box: ContainedGroup | None = None
        self._is_stopped = False

    def live_in(self, environment: Mapping[str, str]) -> None:
        """Set the program's environment, instead of ours. Call it before the program runs."""
        self._around = changed(self._around, environment=environment)

    def run(self) -> StageSuccess | StageFailure:
        try:
            return self._run()
        except ProcessLost as error:
            return StageFailure(cause=FailureCause.LOST, message=str(error), hint=error.hint, error_code=error.code)
        except (StokerError, OSError) as error:
            return failure_of(error)
        except Exception as error:  # noqa: BLE001 - failure is a value, also ours and that of a cookbook's rendering
            ours = failure_of(error)
            return StageFailure(
                cause=FailureCause.IO,
                message=f"a bug in Stoker, not in the program: {ours.message}",
                hint="please report it, with the output of `stoker logs`",
                detail=ours.detail,
                error_code=InternalError.code,
            )

    def ask_to_stop(self) -> None:
        child = self._stop()
        if child is not None:
            ask_group(child.identity)

    def kill(self) -> bool:
        child = self._stop()
        if child is None:
            return False
        try:
            # It may still wait at the door of its box.
            stop_group(child.identity, grace_s=0.0)
        finally:
            if self._box is not None:
                self._box.kill_all()
        return True

    def _stop(self) -> Child | None:
        with self._lock:
            self._is_stopped = True
            return self._child

    def _run(self) -> StageSuccess | StageFailure:
        work = self._work
        program = _program_of(work)
        scratch = open_scratch(work.scratch, run_id=work.folders.run_id, me=mine(), clock=self._clock)
        try:
            if self._around.user is not None:
                give_to(self._around.user, scratch.path, keeps=OURS)
            mark = f"{work.folders.run_id}-{os.urandom(4).hex()}"
            with ExitStack() as held:
                locks = _locks_of(work) if program.outputs else ""
                for lock in output_locks(locks, program.folder, program.outputs):
                    held.enter_context(lock)
                outputs = DeclaredOutputs(program.folder, program.outputs, notes=locks, resume_key=work.resume_key)
                resume = self._resume_from(scratch, program, interrupted_s=outputs.interrupted_s)
                launch = render_launch(program, work, self._around, mark=mark, scratch=scratch.path, resume=resume)
                speech = self._output_of(program, scratch, outputs, resumes=resume is not None)
                seen = self._see_through(launch, mark, program, scratch, speech)
                return _STOPPED_EARLY if seen is None else self._judge(launch, seen, program, outputs)
        finally:
            scratch.leave()

    def _resume_from(self, scratch: Scratch, program: Program, *, interrupted_s: float | None) -> str | None:
        with self._as_program():
            choice = choose_checkpoint(scratch.path, Digest(self._work.resume_key))
        for why in choice.refused:
            self._tell(f"checkpoint skipped: {why}")
        if choice.checkpoint is None:
            return None
        at = "" if choice.checkpoint.step is None else f" (step {choice.checkpoint.step})"
        place, at_s = choice.said.get("place"), choice.said.get("at")
        if isinstance(place, str) and place and isinstance(at_s, float):
            kept = KeptCheckpoint(path=choice.checkpoint.path, place=place, at_s=at_s, digest=choice.said["sha256"])
            try:
                with self._as_program():
                    path, aside = put_back(kept, self._checkpoint_folders(program), interrupted_s=interrupted_s)
            except (OSError, ValueError, RecursionError, StokerError) as error:
                self._tell(f"checkpoint can't be put back at {one_line(place)}: {error}")
            else:
                shown = one_line(place.partition("/")[2])
                if aside:
                    self._tell(f"another {shown} was there: it is now {one_line(os.path.basename(aside))}")
                if path:
                    self._tell(f"resumes from {shown}{at}: {scratch.why}")
                    return path
        self._tell(f"resumes from {one_line(os.path.basename(choice.checkpoint.path))}{at}: {scratch.why}")
        return choice.checkpoint.path

    def _checkpoint_folders(self, program: Program) -> dict[str, str]:
        """Return the folders that are searched for checkpoints, by the place that checkpoints in them have."""
        declared = [os.path.normpath(one) for one in program.outputs]
        folders = {f"folder/{one}": os.path.join(program.folder, one) for one in declared if one != os.curdir}
        return {"out": self._work.out, **folders}

    def _written_metrics(self, program: Program, *, resumes: bool) -> WrittenMetrics | None:
        """Return what reads the program's files, as they are before it starts."""
        if METRICS_OFF in program.metrics:
            return None
        named = [one for one in program.metrics if not is_metric_pattern(one)]
        return WrittenMetrics(
            [self._work.out, *(os.path.join(program.folder, one) for one in program.outputs)],
            [os.path.join(program.folder, one) for one in named],
            self._clock,
            log=self._tell,
            acting=self._as_program,
            resumes=resumes,
        )

    def _output_of(
        self, program: Program, scratch: Scratch, outputs: DeclaredOutputs, *, resumes: bool
    ) -> ProgramOutput:
        """Return what hears the program and reads its files, as they are before it starts."""
        checkpoints = ProgramCheckpointStore(
            folder=program.folder,
            scratch=scratch.path,
            resume_key=self._work.resume_key,
            tell=self._tell,
            acting=self._as_program,
        )
        written = self._written_metrics(program, resumes=resumes)
        folders = self._checkpoint_folders(program)
        finder = CheckpointFinder(folders, log=self._tell, beat=outputs.beat, acting=self._as_program)
        return ProgramOutput(self._work.emit, self._clock, checkpoints, program.metrics, written, finder)

    def _see_through(
        self, launch: Launch, mark: str, program: Program, scratch: Scratch, speech: ProgramOutput
    ) -> _Seen | None:
        """Start the program and listen until it is gone; nothing if it was stopped before."""
        work = self._work
        limits = ContainmentLimits(memory_bytes=work.memory_bytes, uses_gpu=bool(work.devices))
        box = self._containment().open(f"{work.folders.run_id}-{work.node}", limits, mark)
        log = LogFile(work.folders.log_of(work.node))
        try:
            with self._lock:
                if self._is_stopped:
                    return None
                self._box = box
                self._child = child = self._start(launch, mark, box)
            try:
                box.took_in(child.identity)
                work.started(child.identity)
                return self._listen(child, box, program, log=log, scratch=scratch, speech=speech)
            finally:
                # Whatever went wrong on our side, the program does not go on alone.
                if child.poll() is None:
                    child.stop(grace_s=0.0)
                for stream in (child.stdout, child.stderr):
                    if stream is not None:
                        stream.close()
        finally:
            log.close()
            box.close()

    def _start(self, launch: Launch, mark: str, box: ContainedGroup) -> Child:
        user = self._around.user
        starting = start if user is None else partial(start_as, user)
        return starting(
            launch.argv,
            cwd=launch.folder,
            env={**launch.env, MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            entry=box.entry,
        )

    def _as_program(self) -> AbstractContextManager[None]:
        """Return a context in which files are accessed with the rights of the program's user."""
        user = self._around.user
        return nullcontext() if user is None else acting_as(user.uid, user.gid)

    def _listen(
        self,
        child: Child,
        box: ContainedGroup,
        program: Program,
        *,
        log: LogFile,
        scratch: Scratch,
        speech: ProgramOutput,
    ) -> _Seen:
        work = self._work
        control = work.folders.control_of(work.node, work.attempt)
        watch = ProgramWatch(
            speech=speech,
            control=ControlFile(control),
            log=log,
            clock=self._clock,
            silence_s=program.silence_s,
            beat=scratch.beat,
            hidden=self._around.hidden,
        )
        ended = watch.until_end(child, box)
        seen = _Seen(ended=ended, reading=box.read(), watch=watch, complaint=speech.complaint)
        if watch.strays:
            self._tell(f"it ended and left {watch.strays} processes running; they were stopped")
        if log.lost_bytes:
            self._tell(f"{format_size(log.lost_bytes)} of its output could not be kept")
        if self._around.hidden:
            # What was reported there is heard, and it was written as it was said.
            remove_tree(control)
        for path in (control, work.folders.metrics_of(work.node)):
            if remove_if_odd(path):
                self._tell(f"it put something in the place of {os.path.basename(path)} that is no file; removed")
        return seen

    def _judge(
        self, launch: Launch, seen: _Seen, program: Program, outputs: DeclaredOutputs
    ) -> StageSuccess | StageFailure:
        work, ended = self._work, seen.ended
        was_killed = seen.reading.was_out_of_memory
        usage = AttemptUsage(
            peak_rss_bytes=seen.reading.peak_bytes or ended.max_rss_bytes,
            cpu_s=ended.cpu_s,
            was_killed_for_memory=was_killed,
        )
        if seen.watch.was_silent:
            return went_silent(program.silence_s or 0.0, usage)
        words = ProgramExit(
            stderr=seen.watch.last_words(),
            complaint=seen.complaint,
            was_out_of_memory=was_killed,
            cap_bytes=work.memory_bytes,
            folder=program.folder,
        )
        failed = failure_of_program(ended, words, usage)
        if failed is not None:
            return failed
        with self._as_program():
            for name, reason in tidy_out(work.out).items():
                self._tell(f"{name} is not part of the result: {reason}")
            collected = outputs.collect(work.out)
            for stale in collected.stale:
                self._tell(f"nothing is new in {stale}")
            failed = failure_of_outputs(collected, usage)
            if failed is not None:
                return failed
            work.stage.output.check_folder(work.out)
        outputs.forget()
        return StageSuccess(usage=usage, manifest=manifest_of_program(launch, work))

    def _tell(self, text: str) -> None:
        self._work.emit({"log": text})


class _AttemptOfAnother:
    """One attempt as another user, in folders of its own; its result is taken when its processes are gone."""

    def __init__(
        self,
        user: OtherUser,
        work: Work,
        around: ProgramContext,
        containment: Callable[[], Containment],
        clock: Clock,
    ) -> None:
        self._user = user
        self._work = work
        self._around = around
        self._clock = clock
        self._run_as = RunAsFolders(user, work, os.urandom(4).hex())
        here = changed(around, trainer_folder=self._run_as.library)
        self._inner = _ProgramAttempt(self._run_as.work, here, containment, clock)

    def run(self) -> StageSuccess | StageFailure:
        try:
            return self._run()
        except (StokerError, OSError) as error:
            return failure_of(error)

    def ask_to_stop(self) -> None:
        self._inner.ask_to_stop()

    def kill(self) -> bool:
        return self._inner.kill()

    def _run(self) -> StageSuccess | StageFailure:
        folders = self._run_as
        # Processes and files that a killed attempt has left must not meet this one.
        end_everybody_of(self._user.uid, self._clock)
        remove_leftovers(self._user.uid)
        try:
            folders.open(self._around.trainer_folder)
            self._inner.live_in(folders.environment(self._around.environment, self._around.granted))
            outcome = self._inner.run()
            left = end_everybody_of(self._user.uid, self._clock)
            if left:
                self._tell(f"{left} processes of {self._user.name} escaped from it; they were stopped")
            # The user works on other jobs after this one, and what is this one's is no other's.
            remove_leftovers(self._user.uid)
            if os.path.isdir(self._work.scratch):
                take_back(self._user, self._work.scratch, keeps=OURS, keeps_links=False)
            if isinstance(outcome, StageSuccess):
                for name in folders.take_result():
                    self._tell(f"{name} is not part of the result: it belongs to another user")
            return outcome
        finally:
            folders.close()

    def _tell(self, text: str) -> None:
        self._work.emit({"log": text})


def _locks_of(work: Work) -> str:
    """Make the folder for locks that all runs share, beside their scratch folders."""
    folder = os.path.join(work.folders.scratch, ".locks")
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def _program_of(work: Work) -> Program:
    """Ask the stage which program does its work."""
    inputs = {
        port.name: [port.kind(given.ref.digest, given.where) for given in work.inputs[port.name]]
        for port in work.stage.ports
    }
    handed = {port.name: inputs[port.name] if port.takes_many else inputs[port.name][0] for port in work.stage.ports}
    job = StageContext(
        node=work.node,
        out=work.out,
        emit=work.emit,
        is_cancelled=work.is_cancelled,
        devices=work.devices,
        attempt=work.attempt,
        scratch=work.scratch,
    )
    return _render(work.stage, job, handed, work.args)


def _render(stage: Stage, job: StageContext, inputs: Mapping[str, Any], args: Mapping[str, Any]) -> Program:
    program = perform(stage, job, inputs, stage.args.make(args))
    if not isinstance(program, Program):
        raise InternalError(f"stage {stage.name} gave {program!r}, not a program")
    return program
