"""What is to run as ranks, read from the words of a program, and how: decided here, before any process starts.

python train.py --lr 3     our own interpreter: each rank is forked and runs the script, libraries imported already
venv/bin/python -O x.py    another one, or with options: it is started for each rank, on a small file of ours
./simulate --steps 9       any program: it gets the variables of its rank, its end is all that it says
"""

from __future__ import annotations

import ast
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.clock import Closable
from stoker.core.errors import BadGang, Diagnostic, LocalFile, NoPermission, ProgramNotFound
from stoker.core.frozen import frozen
from stoker.gang.rank_config import MOST_RANKS
from stoker.gang.rendezvous_types import variables_for
from stoker.host.box_entry import find_program
from stoker.host.interpreter import (
    CODE,
    FILE,
    MODULE,
    find_python,
    is_bare_python,
    is_python,
    no_script,
    read_python_command,
)

_LOCAL_RANK = "${local_rank}"
_LARGEST_SCRIPT_BYTES = 4 * 1024 * 1024


@frozen
class Script:
    """A script, or a program that is none."""

    argv: tuple[str, ...]
    """The interpreter with its options, or the program with its words; the first is a path."""
    environment: Mapping[str, str]
    is_own: bool = False
    """True if our own interpreter can run it."""
    how: str = ""
    """One of `FILE`, `MODULE`, `CODE`; empty: a program."""
    what: str = ""
    args: tuple[str, ...] = ()

    def order(self, rank: int, nranks: int) -> dict[str, Any] | None:
        """Return the order for `script_boot`; None for a program."""
        if not self.how:
            return None
        args = [word.replace(_LOCAL_RANK, str(rank)) for word in self.args]
        return {"how": self.how, "what": self.what, "args": args, "rank": rank, "nranks": nranks}

    def words(self, rank: int) -> list[str]:
        """Return the words that are started for a rank; of a script, those up to it."""
        return list(self.argv) if self.how else [word.replace(_LOCAL_RANK, str(rank)) for word in self.argv]


@frozen
class OwnPython:
    """The interpreter that runs Stoker."""

    executable: str = sys.executable
    prefix: str = sys.prefix
    base_prefix: str = sys.base_prefix

    def is_it(self, path: str) -> bool:
        """Return whether a path starts the interpreter that runs Stoker, in the same environment."""
        try:
            is_same_file = os.path.samefile(path, self.executable)
        except OSError:
            return False
        around = os.path.dirname(os.path.dirname(os.path.abspath(path)))
        is_environment = os.path.isfile(os.path.join(around, "pyvenv.cfg"))
        if self.prefix == self.base_prefix:
            return is_same_file and not is_environment
        return is_same_file and is_environment and os.path.realpath(around) == os.path.realpath(self.prefix)


def check_ranks(nranks: int) -> None:
    """Refuse a number of ranks that can't be. Raises `BadGang`."""
    if not 1 <= nranks <= MOST_RANKS:
        hint = f"1 to {MOST_RANKS:,}" if nranks < 1 else f"{MOST_RANKS:,} are the most on one machine"
        fault = Diagnostic("ranks", f"{nranks:,} can't be", hint)
        raise BadGang(str(fault), faults=(fault,), hint=hint)


def read_script(
    words: Sequence[str], *, folder: str, environment: Mapping[str, str], own: OwnPython | None = None
) -> Script:
    """Find out what the words mean in a folder. Raises `ProgramNotFound` if the program or its script is not there."""
    own = own or OwnPython()
    if not words or not words[0]:
        raise ProgramNotFound("the program's name is empty", hint="-- python train.py")
    argv0, env = _find(words[0], folder, environment, own)
    if not is_python(words[0]):
        return Script(argv=(argv0, *words[1:]), environment=env)
    env.setdefault("PYTHONUNBUFFERED", "1")
    command = read_python_command(words[1:])
    if not command.how:
        return Script(argv=(argv0, *words[1:]), environment=env)
    if command.how == FILE:
        _check_script(command.what, folder)
    return Script(
        argv=(argv0, *command.options),
        environment=env,
        is_own=own.is_it(argv0) and all(set(option) <= {"-", "u"} for option in command.options),
        how=command.how,
        what=command.what,
        args=command.args,
    )


def needs_libraries(script: Script, folder: str) -> bool:
    """Return whether a script imports more than the standard library, as far as its own text tells."""
    if script.how == MODULE:
        return True
    if script.how == CODE:
        return _imports_more(script.what)
    try:
        with open(os.path.join(folder, script.what), "rb") as file:
            source = file.read(_LARGEST_SCRIPT_BYTES)
    except OSError:
        return True
    return _imports_more(source)


def _imports_more(source: str | bytes) -> bool:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The interpreter will say what is wrong with it.
        return False
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        if any(name.partition(".")[0] not in sys.stdlib_module_names for name in names):
            return True
    return False


def _find(word: str, folder: str, environment: Mapping[str, str], own: OwnPython) -> tuple[str, dict[str, str]]:
    """Return the path of what a first word names, and the environment that goes with it."""
    env = dict(environment)
    if is_bare_python(word):
        python = find_python("", folder=folder, environment=environment, own_prefix=own.prefix, word=word)
        for name, value in python.env.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        if not python.path:
            raise ProgramNotFound(python.why, hint="name an interpreter by its path")
        return python.path, env
    try:
        return os.path.join(folder, find_program(word, cwd=folder, env=environment)), env
    except NoPermission:
        hint = f"-- python {word}" if word.endswith(".py") else f"chmod +x {word}, or name its interpreter"
        raise ProgramNotFound(f"{word} is not executable", hint=hint) from None
    except LocalFile as error:
        is_here = os.path.isfile(os.path.join(folder, word))
        hint = error.hint if not is_here else f"-- python {word}" if word.endswith(".py") else f"-- ./{word}"
        raise ProgramNotFound(f"there is no program {word}", hint=hint) from None


def _check_script(script: str, folder: str) -> None:
    path = os.path.join(folder, script)
    if os.path.isfile(path) and not os.access(path, os.R_OK):
        raise ProgramNotFound(f"{script} may not be read", hint=f"chmod +r {script}")
    if os.path.isfile(path) or os.path.isfile(os.path.join(path, "__main__.py")):
        return
    if os.path.isdir(path):
        raise ProgramNotFound(f"{script} is a folder without a __main__.py", hint="name the script in it")
    if os.path.exists(path):
        raise ProgramNotFound(f"{script} is no file that every rank could read", hint="save the script as a file")
    raise no_script(script, folder)


# The variables that a rank of a script finds: those that `torchrun --standalone` would give it.

ADDRESS = "127.0.0.1"


def rank_variables(rank: int, nranks: int, *, port: int, run_id: str) -> dict[str, str]:
    """Return what differs from rank to rank, or is known only now."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(nranks),
        "LOCAL_WORLD_SIZE": str(nranks),
        "ROLE_WORLD_SIZE": str(nranks),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 serves the store on that port, as without torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def speaks_for_all(environment: Mapping[str, str], rank: int) -> dict[str, str]:
    """Return what keeps metrics and last words of ranks but the first from a run of Stoker's around the gang."""
    if not rank or not environment.get("STOKER_CONTROL"):
        return {}
    return {"STOKER_CONTROL": os.devnull, "STOKER_METRICS": os.devnull}


def shared_variables(environment: Mapping[str, str], nranks: int) -> dict[str, str]:
    """Return the environment that all ranks have in common; libraries read it when they are imported."""
    made = {name: value for name, value in environment.items() if name != "TORCHELASTIC_ERROR_FILE"}
    made = {**variables_for(""), **made}
    made.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if nranks > 1:
        # Else each rank would take all processors, and they would be in each other's way.
        made.setdefault("OMP_NUM_THREADS", "1")
    return made


class HeldPort(Closable):
    """A port that the kernel gives to no other program while this is open; with SO_REUSEADDR torch can listen on it.

    Only a script that meets by address and port uses it: ours needs none.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", 0))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()
