"""Words with places to fill: `--lr {lr}`, `--config '{"lr":{lr}}'`.

As people write them, `{name}` is a place, `{{name}}` stands for `{name}`, and any other brace is a brace. `${name}` is
a shell's as long as there is nothing of that name to fill in.

Some places are filled later, when the program starts. In the words that are kept until then every brace that is not
part of such a place is doubled, so that nothing that was filled in is ever taken for a place.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.core.digests import digest_bytes
from stoker.core.errors import BadInput, StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import read_regular, translate, write_file
from stoker.host.locks import FileLock

GANG = ("stoker", "gang", "run")
"""Our own words before those of a program that runs as ranks."""


def gang_words(ranks: int) -> tuple[str, ...]:
    """Return what stands before a program's words so that it runs as so many ranks."""
    return (*GANG, "--ranks", str(ranks), "--")


def split_gang_words(argv: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return our own words before a program that runs as ranks, and the program's words."""
    border = argv.index("--") + 1 if argv[:3] == GANG and "--" in argv[:-1] else 0
    return argv[:border], argv[border:]


@frozen
class Program:
    """A program that does a stage's work, with its words, rendered before anything starts.

    What it writes below `$STOKER_OUT`, and what it leaves under the `outputs` that its owner declared, is the stage's
    result. It is the user's program, run by the user's interpreter, in the user's folder.
    """

    argv: tuple[str, ...]
    folder: str
    """Where it starts, and what its `outputs` are relative to."""
    python: str = ""
    """Which interpreter a bare `python` means; empty: the one that its owner would get there."""
    env: Mapping[str, str] = fresh(factory=dict)
    """Added to the environment."""
    params: Mapping[str, Any] = fresh(factory=dict)
    """What it may ask of `stoker_trainer`."""
    outputs: tuple[str, ...] = ()
    """Files and folders below `folder` that belong to its result; of folders, what is new or changed."""
    silence_s: float | None = None
    """How long it may say nothing."""
    metrics: tuple[str, ...] = ()
    """Where its metrics are read from beside its output: patterns and paths; `off`: nowhere."""


_NAME = r"[A-Za-z_][\w.-]*"
_WRITTEN = re.compile(rf"\{{\{{({_NAME})\}}\}}|(\$?)\{{({_NAME})\}}", re.ASCII)
_KEPT = re.compile(rf"\{{\{{|\}}\}}|\{{({_NAME})\}}", re.ASCII)


def fill_some(word: str, values: Mapping[str, str], later: Collection[str] = ()) -> str:
    """Fill the places of a word as it was written and give it as it is kept; `KeyError` names one without a value."""
    kept = []
    end = 0
    for match in _WRITTEN.finditer(word):
        kept.append(_doubled(word[end : match.start()]))
        end = match.end()
        escaped, dollar, name = match[1], match[2], match[3]
        if escaped:
            kept.append(_doubled(f"{{{escaped}}}"))
        elif name in values:
            kept.append(dollar + _doubled(values[name]))
        elif name in later:
            kept.append(f"{dollar}{{{name}}}")
        elif dollar:
            kept.append(_doubled(match[0]))
        else:
            raise KeyError(name)
    return "".join((*kept, _doubled(word[end:])))


def fill(word: str, values: Mapping[str, str]) -> str:
    """Fill what is left in a word that was kept; `KeyError` names a place without a value."""
    return _KEPT.sub(lambda match: values[match[1]] if match[1] else match[0][0], word)


RESUME = "resume"
"""The place of the checkpoint that an attempt resumes from: filled when it starts."""
_RESUME = re.compile(r"\{resume(?:\?([^:{}]*):([^{}]*))?\}")


def fill_resume(argv: Sequence[str], path: str) -> tuple[str, ...]:
    """Fill `{resume}` with the path of a checkpoint, and `{resume?yes:no}` with `yes` if there is one.

    If there is none, a word with `{resume}` is left out, and so is the option before it if it is the whole word.
    """
    words: list[str] = []
    for word in argv:
        plain = any(found[1] is None for found in _RESUME.finditer(word))
        if plain and not path:
            if word == f"{{{RESUME}}}" and words[1:] and words[-1].startswith("-") and "=" not in words[-1]:
                words.pop()
            continue
        words.append(_RESUME.sub(lambda found: path if found[1] is None else found[1] if path else found[2], word))
    return tuple(words)


def places_in(word: str) -> Iterator[str]:
    """Name the places of a word as it was written, also those that may be a shell's."""
    return (match[3] for match in _WRITTEN.finditer(word) if match[3])


def required_in(word: str) -> Iterator[str]:
    """Name the places of a word as it was written that have to be filled."""
    return (match[3] for match in _WRITTEN.finditer(word) if match[3] and not match[2])


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


# The outputs that a program's owner declared: what of them is new, taken into its result.


_Look = tuple[int, int, int]
_LARGEST_NOTE_BYTES = 256 << 20
_BEAT_S = 1.0
PUT_ASIDE = ".before-resume"
"""In the names of what lay where a checkpoint was put back; it is no output of the attempt."""


@frozen
class CollectedOutputs:
    """What became of the declared outputs."""

    missing: tuple[str, ...] = ()
    """Nothing is there."""
    stale: tuple[str, ...] = ()
    """Folders in which nothing is new."""
    twice: tuple[str, ...] = ()
    """Lies in the result already, because the program wrote it there itself."""


class DeclaredOutputs:
    """The declared outputs of one attempt, as they looked before its work began.

    Work that is interrupted leaves a note of that for each output, beside the output's lock. The attempt that continues
    it takes what the first one wrote as new, too; unless other work had the output meanwhile.
    """

    def __init__(self, folder: str, declared: Sequence[str], *, notes: str = "", resume_key: str = "") -> None:
        """Look at the outputs; `notes` is the folder of the locks, which are held."""
        self._folder = folder
        self._declared = list(dict.fromkeys(checked_output(one) for one in declared))
        # Links that are there before the program are its owner's, and lead where the owner wants.
        self._links = {one: os.path.realpath(path) for one in self._declared if os.path.islink(path := self._at(one))}
        self._notes = [_place_file(notes, place, "json") for place in _places(folder, declared)] if notes else []
        before = [_noted(note, resume_key) for note in self._notes]
        self.interrupted_s: float | None = None
        """When the same work was interrupted here; None if it was not, or if other work had the outputs since."""
        self._next_beat_s = 0.0
        if before and all(one is not None for one in before):
            self.interrupted_s = max(os.stat(note).st_mtime for note in self._notes)
            self._before = {path: look for one in before if one is not None for path, look in one.items()}
            return
        self._before = {path: look for one in self._declared for path, _, look in self._files(one)}
        for note in self._notes:
            write_file(note, dumps({"resume_key": resume_key, "before": self._before}).encode("ascii"))

    def beat(self) -> None:
        """Note that the program runs: what is written to its outputs later, when it has been killed, is not its own."""
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + _BEAT_S
            for note in self._notes:
                with suppress(OSError):
                    os.utime(note)

    def forget(self) -> None:
        """Delete the notes: the work is done."""
        for note in self._notes:
            with suppress(FileNotFoundError):
                os.unlink(note)

    def collect(self, into: str) -> CollectedOutputs:
        """Copy what is new or changed, unless there is no folder to copy to any more: the store has words for that."""
        if not os.path.isdir(into) or os.path.islink(into):
            return CollectedOutputs()
        missing, stale, twice = [], [], []
        taken: dict[str, str] = {}
        for one in self._declared:
            found = [file for file in self._files(one) if PUT_ASIDE not in file[0]]
            fresh = [(path, where) for path, where, look in found if path == one or self._before.get(path) != look]
            taken.update(fresh)
            if not found:
                missing.append(one)
            elif not fresh:
                stale.append(one)
        for path, where in taken.items():
            target = os.path.join(into, path)
            if os.path.lexists(target) or _passes_a_link(into, path):
                twice.append(path)
            else:
                try:
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    self._copy(where, path, target)
                except OSError as error:
                    raise translate(error, error.filename or target) from error
        return CollectedOutputs(missing=tuple(missing), stale=tuple(stale), twice=tuple(twice))

    def _copy(self, where: str, path: str, target: str) -> None:
        leads_to = os.readlink(where) if os.path.islink(where) else ""
        if os.path.isabs(leads_to) and leads_to.startswith(os.path.join(self._folder, "")):
            # It leads within the program's folder, so the result can keep it, as a relative link.
            beside = os.path.dirname(os.path.join(self._folder, path))
            os.symlink(os.path.relpath(leads_to, beside), target)
        else:
            import shutil  # noqa: PLC0415 - milliseconds that a cached run never needs

            shutil.copy2(where, target, follow_symlinks=False)

    def _at(self, declared: str) -> str:
        return os.path.join(self._folder, declared)

    def _files(self, declared: str) -> Iterator[tuple[str, str, _Look]]:
        """Return every file by its name below the program's folder, with where it lies and how it looks."""
        top = self._at(declared)
        behind = self._links.get(declared)
        if behind is not None and os.path.realpath(top) == behind:
            top = behind
        if not os.path.isdir(top) or os.path.islink(top):
            yield from _look(top, declared)
            return
        for where, folders, names in os.walk(top):
            # A link to a folder is a link, and is not followed.
            links = [name for name in folders if os.path.islink(os.path.join(where, name))]
            for name in (*names, *links):
                path = os.path.join(where, name)
                yield from _look(path, os.path.join(declared, os.path.relpath(path, top)))


def output_locks(root: str, folder: str, declared: Sequence[str]) -> list[FileLock]:
    """Return a lock for each declared output: two programs that write to one place would take each other's files.

    Locks lie below `root`, which every run of this user shares, and stand in an order in which all take them.
    """
    return [FileLock(_place_file(root, place, "lock"), purpose=place) for place in _places(folder, declared)]


def _places(folder: str, declared: Sequence[str]) -> list[str]:
    return sorted({os.path.realpath(os.path.join(folder, checked_output(one))) for one in declared})


def _place_file(root: str, place: str, suffix: str) -> str:
    return os.path.join(root, f"{digest_bytes(os.fsencode(place))}.{suffix}")


def _noted(note: str, resume_key: str) -> dict[str, _Look] | None:
    """Return how the files looked before the work with this key began; None if no such work was interrupted there."""
    try:
        noted = loads(read_regular(note, _LARGEST_NOTE_BYTES))
        if noted["resume_key"] != resume_key:
            return None
        return {path: (int(a), int(b), int(c)) for path, (a, b, c) in noted["before"].items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, StokerError):
        return None


_LINKED_LOG = re.compile(r"(?:.*/)?wandb/(?:.*/)?debug[\w.-]*\.log", re.ASCII | re.DOTALL)
"""W&B links its logs in the user's home into each of its folders."""


def tidy_out(folder: str) -> dict[str, str]:
    """Make a folder that a program wrote a result that can be kept, as far as its meaning allows.

    Absolute links that lead within it become relative, since it will lie elsewhere. Sockets, pipes, devices and W&B's
    links to logs outside are removed; return why, by path.
    """
    if not os.path.isdir(folder) or os.path.islink(folder):
        return {}
    homes = tuple(os.path.join(home, "") for home in dict.fromkeys((folder, os.path.realpath(folder))))
    removed: dict[str, str] = {}
    left = [folder]
    while left:
        where = left.pop()
        try:
            with os.scandir(where) as found:
                entries = list(found)
            for entry in entries:
                path = os.path.relpath(entry.path, folder)
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                elif entry.is_symlink():
                    if not _lead_within(entry.path, where, homes) and _LINKED_LOG.fullmatch(path):
                        os.unlink(entry.path)
                        removed[path] = "it is a link to a log outside"
                elif not entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
                    removed[path] = "it is neither a file, a folder nor a link"
        except OSError as error:
            raise translate(error, error.filename or where) from error
    return dict(sorted(removed.items()))


def _lead_within(link: str, where: str, homes: tuple[str, ...]) -> bool:
    """Make an absolute link relative if it leads into the folder; return False if it leads elsewhere."""
    leads_to = os.readlink(link)
    home = next((home for home in homes if f"{leads_to}/".startswith(home)), "")
    if home:
        os.unlink(link)
        os.symlink(os.path.relpath(homes[0] + leads_to[len(home) :], where), link)
    return bool(home) or not os.path.isabs(leads_to)


def checked_output(text: str) -> str:
    """Return a declared output in its normal form; `BadInput` unless it lies below the program's folder."""
    path = os.path.normpath(text)
    if not text or os.path.isabs(path) or path in (".", "..") or path.startswith("../") or "\0" in path:
        hint = "a file or folder below the one the program runs in, such as outputs=runs/"
        raise BadInput(f"{text!r} can't be a declared output", hint=hint)
    return path


def _passes_a_link(into: str, path: str) -> bool:
    """Return whether the program made a link where folders of the result would be: nothing is written through it."""
    while path := os.path.dirname(path):
        if os.path.islink(os.path.join(into, path)):
            return True
    return False


def _look(where: str, path: str) -> Iterator[tuple[str, str, _Look]]:
    try:
        info = os.lstat(where)
    except OSError:
        return
    # Sockets, pipes and devices are no results; where a link leads is for the store to judge.
    if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
        yield path, where, (info.st_ino, info.st_size, info.st_mtime_ns)
