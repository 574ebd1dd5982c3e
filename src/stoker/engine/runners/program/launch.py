"""A program from its start, with its words and its whole environment, to the end of all its processes.

Nothing of ours leaks in by accident: the interpreter is the user's, and of our own variables the program gets those
that are meant for it. Its libraries' settings (wandb, TensorBoard, CUDA) stay as they are.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.errors import BadInput, LocalFile, NoPermission, ProcessLost, ProgramNotFound, StokerError
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import JOB_VARIABLES
from stoker.core.jsontext import dumps
from stoker.core.text import did_you_mean, format_size
from stoker.engine.device_gate import HIDDEN
from stoker.engine.program import Program, fill_resume, split_gang_words
from stoker.engine.runners.program.output import ProgramOutput
from stoker.engine.runners.program.sandbox import SecretRedactor
from stoker.engine.runners.stage_runner import Work
from stoker.host.box_entry import find_program
from stoker.host.containment.box import ContainedGroup
from stoker.host.durable import remove_tree
from stoker.host.identity import ProcessExit
from stoker.host.interpreter import find_python, is_bare_python, is_python, script_interpreter
from stoker.host.processes import GRACE_S, Child, ask_group
from stoker.host.users import OtherUser
from stoker.host.writers import LogFile

# The kernel takes no longer word, and no longer variable with its name.
_LONGEST_WORD_BYTES = 128 * 1024 - 1


@frozen
class Launch:
    """What is started."""

    argv: tuple[str, ...]
    folder: str
    env: Mapping[str, str]
    python: str = ""
    """The interpreter that runs the program; empty: it is no Python program, or Stoker can't know."""
    python_found_by: str = ""
    """Why it is that one: `PATH`, `VIRTUAL_ENV`. Empty: the program's first word is its path."""


@frozen
class ProgramContext:
    """What every program of one run is given."""

    environment: Mapping[str, str]
    """The user's."""
    own_prefix: str
    """Where Stoker's own interpreter lives."""
    trainer_folder: str
    """Where `stoker_trainer` lies."""
    has_gpus: bool
    """True if devices have to be hidden from a program that has none."""
    user: OtherUser | None = None
    """As whom programs run; nothing: as ourselves."""
    granted: Mapping[str, str] = fresh(factory=dict)
    """Of the environment: what the job itself was given. Another user's program gets little else of it."""
    own_python: str = sys.executable
    """By which our own part of a start runs: the one that makes a gang of a program."""
    hidden: tuple[str, ...] = ()
    """Secrets among the variables: their values stand in nothing that is written of what a program prints."""


def find_launch(program: Program, around: ProgramContext, variables: Mapping[str, str] | None = None) -> Launch:
    """Find out how a program starts, whatever it works on. What starts ranks of it is the Stoker that runs here.

    `variables` are those of its job; it gets none of the job in which Stoker itself may run.

    Raises `ProgramNotFound` if its first word is no program, `LocalFile` if `python=` leads nowhere, and `BadInput` for
    what the operating system does not take.
    """
    gang, words = split_gang_words(program.argv)
    if gang:
        inner = find_launch(changed(program, argv=words), around, variables)
        return changed(inner, argv=(around.own_python, "-P", "-m", *gang, *inner.argv))
    word = program.argv[0]
    python = find_python(
        program.python,
        folder=program.folder,
        environment=around.environment,
        own_prefix=around.own_prefix,
        word=word,
    )
    env = {name: value for name, value in around.environment.items() if name not in JOB_VARIABLES}
    env |= variables or {}
    for name, value in python.env.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    # Ours must not reach an interpreter that is not: it would take our libraries for its own.
    env.pop("PYTHONHOME", None)
    env |= program.env
    env |= {
        # Else Python keeps what it prints to a pipe to itself, kilobytes at a time, and nothing is live.
        "PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1"),
        "PYTHONPATH": os.pathsep.join(filter(None, (around.trainer_folder, env.get("PYTHONPATH", "")))),
        "STOKER_PARAMS": dumps(dict(program.params)),
    }
    path = (python.path if is_bare_python(word) else "") or _find(program, env, around.own_python)
    interpreter, found_by = "", ""
    if is_bare_python(word):
        interpreter, found_by = path, python.why
    elif is_python(word):
        interpreter = path
    elif word.endswith(".py"):
        interpreter = script_interpreter(path, folder=program.folder, environment=env)
        found_by = f"first line of {os.path.basename(word)}"
    launch = Launch(
        argv=(path, *program.argv[1:]),
        folder=program.folder,
        env=env,
        python=interpreter,
        python_found_by=found_by,
    )
    _refuse_what_no_system_takes(launch)
    return launch


def render_launch(
    program: Program, work: Work, around: ProgramContext, *, mark: str, scratch: str, resume: str | None
) -> Launch:
    """Render the start of one attempt; raises as `find_launch` does."""
    filled = changed(program, argv=fill_resume(program.argv, resume or ""))
    found = find_launch(filled, around, work.folders.variables_of(work.node))
    env = {
        **found.env,
        "STOKER_OUT": work.out,
        "STOKER_SCRATCH": scratch,
        "STOKER_METRICS": work.folders.metrics_of(work.node),
        "STOKER_CONTROL": work.folders.control_of(work.node, work.attempt),
        "STOKER_RESUME_KEY": work.resume_key,
        "STOKER_ATTEMPT": str(work.attempt),
        "STOKER_MARK": mark,
    }
    if resume is None:
        env.pop("STOKER_RESUME", None)
    else:
        env["STOKER_RESUME"] = resume
    env |= work.variables or (HIDDEN if around.has_gpus else {})
    return changed(found, env=env)


def _find(program: Program, env: Mapping[str, str], own_python: str) -> str:
    """Find the program that a word stands for, or say how it might be meant."""
    name, folder = program.argv[0], program.folder
    if not os.path.isdir(folder):
        raise LocalFile(f"there is no folder {folder}", hint="a program runs in the folder the command is given in")
    if not name:
        raise ProgramNotFound("the program's name is empty", hint="quote what belongs together")
    try:
        return find_program(name, cwd=folder, env=env)
    except NoPermission:
        is_folder = os.path.isdir(os.path.join(folder, name))
        hint = "it is a folder" if is_folder else f"chmod +x {name}, or name its interpreter"
        raise ProgramNotFound(f"{name} is not executable", hint=hint) from None
    except LocalFile as error:
        if error.data.get("path") != name:
            # The interpreter that the first line of a script names.
            raise ProgramNotFound(error.message, hint=error.hint) from None
    raise ProgramNotFound(f"there is no program {name}", hint=_hint_for(name, folder, env, own_python))


def _hint_for(name: str, folder: str, env: Mapping[str, str], own_python: str) -> str:
    if is_bare_python(name):
        return f"python= takes an interpreter or a .venv folder; Stoker's own is {own_python}"
    if "/" in name:
        return "paths are relative to the folder of the command"
    if os.path.isfile(os.path.join(folder, name)):
        return f"for the file here, write ./{name} or python {name}"
    return did_you_mean(name, _programs(env.get("PATH", os.defpath))) or "check PATH"


def _programs(path: str) -> set[str]:
    names: set[str] = set()
    for place in path.split(os.pathsep):
        try:
            names.update(os.listdir(place))
        except OSError:
            continue
    return names


def _refuse_what_no_system_takes(launch: Launch) -> None:
    variables = {f"the variable {name}": f"{name}={value}" for name, value in launch.env.items()}
    words = {f"word {number} of the program": word for number, word in enumerate(launch.argv, 1)}
    for what, text in {**variables, **words}.items():
        if "\0" in text:
            raise BadInput(f"{what} contains a zero byte")
        size_bytes = len(os.fsencode(text))
        if size_bytes > _LONGEST_WORD_BYTES:
            size = f"{format_size(size_bytes)}, and {format_size(_LONGEST_WORD_BYTES + 1)} are the most"
            raise BadInput(f"{what} is too long: {size}", hint="put it into a file, and give the file's name")
    odd = next((name for name in launch.env if not name or "=" in name), None)
    if odd is not None:
        raise BadInput(f"invalid variable name {odd!r}", hint="env.NAME=VALUE")


# Listening to a program until it and whatever it left behind are gone.
#
# One thread reads its two streams and the file through which `stoker_trainer` reports, writes the log, passes on what
# is progress, and keeps an eye on silence. Memory and time are bounded whatever is printed, also if other processes
# hold the streams open when the program has ended.


_LOOK_BYTES = 1 << 18
# What the last look reads at most; a trainer writes far less in an hour.
_REST_BYTES = 1 << 24


class ControlFile:
    """One attempt's file, through which `stoker_trainer` reports: JSON lines, only appended to. It need not exist.

    The program owns it, so anything may be found in its place. Nothing here waits, and each read is bounded.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._read_bytes = 0

    def fresh(self) -> bytes:
        """Return what was written since the last look, some of it if it is much."""
        try:
            # Most looks end here. A pipe or a device has no size, and a link is never followed.
            if os.lstat(self._path).st_size <= self._read_bytes:
                return b""
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            data = os.pread(descriptor, _LOOK_BYTES, self._read_bytes)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
        self._read_bytes += len(data)
        return data

    def rest(self) -> Iterator[bytes]:
        """Return all that is left, up to a bound; for when the program has ended."""
        end_bytes = self._read_bytes + _REST_BYTES
        while self._read_bytes < end_bytes and (data := self.fresh()):
            yield data


def remove_if_odd(path: str) -> bool:
    """Remove what a program put in the place of a file of ours and is none, so that no reader waits for it.

    Says whether there was such a thing.
    """
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):
            return False
        if stat.S_ISDIR(mode):
            remove_tree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return False
    except (OSError, StokerError):
        return True
    return True


_CHUNK_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_LOOK_EVERY_S = 0.2
_TAIL_BYTES = 16384
# Between the end of a program and the moment when its other processes must be gone, too.
_LAST_WORDS_S = 0.5
_SETTLE_S = 0.01
# Of what is left in the streams, all that pipes hold: a process that still writes then is out of reach.
_LAST_READ_BYTES = 4 << 20


class ProgramWatch:
    """Listens to one attempt."""

    def __init__(  # noqa: PLR0913 - all that it listens with
        self,
        *,
        speech: ProgramOutput,
        control: ControlFile,
        log: LogFile,
        clock: Clock,
        silence_s: float | None,
        beat: Callable[[], None],
        hidden: tuple[str, ...] = (),
    ) -> None:
        self._speech = speech
        self._control = control
        self._log = log
        self._clock = clock
        self._silence_s = silence_s
        self._beat = beat
        self._hidings = {is_out: SecretRedactor(hidden) for is_out in (True, False)}
        self._control_hiding = SecretRedactor(hidden)
        self._tail = bytearray()
        self._heard_s = clock.monotonic_s()
        self._next_look_s = self._heard_s
        self._kill_at_s: float | None = None
        self.was_silent = False
        """It was stopped because no output for too long."""
        self.strays = 0
        """How many processes it left behind, which were stopped."""

    def last_words(self) -> str:
        """Return the end of what it wrote to its error stream."""
        return self._tail.decode(errors="replace")

    def until_end(self, child: Child, box: ContainedGroup) -> ProcessExit:
        """Listen until the program and all its processes have ended."""
        streams = [stream for stream in (child.stdout, child.stderr) if stream is not None]
        end_fd = _end_of(child)
        self._heard_s = self._clock.monotonic_s()
        try:
            with selectors.DefaultSelector() as selector:
                for stream in streams:
                    _widen(stream.fileno())
                    selector.register(stream, selectors.EVENT_READ, stream is child.stdout)
                if end_fd is not None:
                    selector.register(end_fd, selectors.EVENT_READ)
                while (ended := child.poll()) is None:
                    self._listen(selector, _LOOK_EVERY_S)
                    self._look_around(child, box)
                if end_fd is not None:
                    selector.unregister(end_fd)
                self._hear_out(selector, box)
        finally:
            if end_fd is not None:
                os.close(end_fd)
        for is_out, hiding in self._hidings.items():
            self._take(hiding.finish(), is_out=is_out)
        for data in self._control.rest():
            self._speech.hear_control(self._control_hiding.feed(data))
        self._speech.hear_control(self._control_hiding.finish())
        self._speech.finish(is_success=ended.is_success)
        return ended

    def _listen(self, selector: selectors.BaseSelector, wait_s: float) -> int:
        """Read once from each stream that has something, and return how many bytes that was."""
        read_bytes = 0
        for key, _ in selector.select(wait_s):
            if key.data is None:
                continue
            data = os.read(key.fd, _CHUNK_BYTES)
            if not data:
                selector.unregister(key.fileobj)
                continue
            read_bytes += len(data)
            self._heard_s = self._clock.monotonic_s()
            self._take(self._hidings[key.data].feed(data), is_out=key.data)
        return read_bytes

    def _take(self, data: bytes, *, is_out: bool) -> None:
        """Write down what was printed, and hear what it says; secrets are out of it."""
        if not data:
            return
        self._log.write(data)
        self._speech.hear(data, is_out=is_out)
        if not is_out:
            self._tail += data
            del self._tail[:-_TAIL_BYTES]

    def _look_around(self, child: Child, box: ContainedGroup) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_EVERY_S
        self._beat()
        # Read while it runs: then its memory can be distinguished from the kernel's cache of files.
        if box.read().was_out_of_memory:
            # Some kernels kill one and let the others wait for it for ever.
            box.kill_all()
        quiet_s = self._speech.hear_control(self._control_hiding.feed(self._control.fresh()))
        if quiet_s is not None:
            self._heard_s = max(self._heard_s, now_s - quiet_s)
        self._speech.look()
        if self._kill_at_s is not None:
            if now_s >= self._kill_at_s:
                box.kill_all()
        elif self._silence_s is not None and now_s - self._heard_s >= self._silence_s:
            self.was_silent = True
            self._kill_at_s = now_s + GRACE_S
            ask_group(child.identity)

    def _hear_out(self, selector: selectors.BaseSelector, box: ContainedGroup) -> None:
        """Read what is left; stop the processes of the program that are still there after a moment."""
        deadline_s = self._clock.monotonic_s() + _LAST_WORDS_S
        strays = box.members()
        while (strays or selector.get_map()) and self._clock.monotonic_s() < deadline_s:
            if selector.get_map():
                self._listen(selector, _SETTLE_S)
            else:
                self._clock.sleep(_SETTLE_S)
            if strays:
                strays = box.members()
        if strays:
            self.strays = len(strays)
            # If a process stays even so, closing the box reports it.
            with suppress(ProcessLost):
                box.kill_all()
        left_bytes = _LAST_READ_BYTES
        while selector.get_map() and selector.select(0) and left_bytes > 0:
            left_bytes -= self._listen(selector, 0)


def _widen(pipe_fd: int) -> None:
    """Enlarge a pipe, so that a program that prints much blocks less often."""
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(pipe_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _end_of(child: Child) -> int | None:
    """Return a descriptor that is readable when the program has ended, where there is such a thing."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(child.identity.pid)
    except OSError:
        return None
