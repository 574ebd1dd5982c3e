"""Words that a shell offers when Tab is pressed: `stoker __complete`, which the scripts of `completion` call.

Must answer in less than 100 ms: the grammars are read from `completion_table.json`, which `tools/reference.py` writes
from them, and names only from files of this home. Nothing is started, written or requested over a network. Any error
means no words: nothing may appear at the user's prompt.

The first line of the answer names what the shell completes by itself: `files`, `folders`, `program N` (the program
begins at word N), or nothing. Each other line is a word; for zsh and fish a tab and its description follow, and the
shell quotes it. For bash a word is quoted here, and ends with a space unless more of the same word follows. Words with
control characters are left out.
"""

from __future__ import annotations

import os
import sys

from stoker.cli.commands import EVERYWHERE, GLOBAL_FLAGS, expand, find_command, take_flags, verbs_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from stoker.api.app_parts import AppSettings

TABLE = os.path.join(os.path.dirname(__file__), "completion_table.json")

_MOST_JOBS = 200
"""The newest job folders that are read."""

_LARGEST_BYTES = 2**20
_SETTING = "setting"
"""Settings of the recipe that was typed; `setting NAME`: of this recipe."""
_REF = ".ref"


def answer_shell(argv: list[str]) -> int:
    """Print the answer for `SHELL WORD … CURRENT`, or for `bash LINE WORDBREAKS`. Never fails."""
    try:
        if argv[0] == "bash":
            line = _BashLine(argv[1], argv[2])
            found = _Completion(line.words, line.current)
            lines = [line.insertion(word) for word in found.words]
        else:
            found = _Completion(argv[1:-1], argv[-1])
            lines = [f"{word}\t{found.words[word]}" for word in found.words]
        text = "\n".join([found.shell_part, *filter(None, lines)])
        sys.stdout.buffer.write(f"{text}\n".encode())
        sys.stdout.flush()
    except Exception:  # noqa: BLE001 - it would be printed over the command line that is being typed
        return 1
    return 0


class _Completion:
    """The words that may follow `words` in place of `current`, each with its description."""

    def __init__(self, words: list[str], current: str) -> None:
        self.words: dict[str, str] = {}
        self.shell_part = ""
        self._current = current
        self._head = ""
        """The part of the current word before its value: `--out=`, or `lr=`."""
        if "--" in words:
            self._in_program(words)
            return
        typed, flags = take_flags(words)
        typed = expand(typed)
        if typed[:1] == ["help"] or flags.help:
            self._commands([word for word in typed if word != "help"])
        elif not typed:
            self._commands([])
            self._offer([("help", "print the help of a command")])
            self._everywhere()
        else:
            self._of_command(typed)

    def _offer(self, rows: Iterable[tuple[str, str]]) -> None:
        for word, text in rows:
            whole = self._head + word
            if whole.startswith(self._current) and whole.isprintable():
                self.words.setdefault(whole, "".join(char if char.isprintable() else " " for char in text))

    def _commands(self, words: list[str]) -> None:
        verbs = verbs_of(" ".join(words))
        self._offer((verb.path[-1], verb.summary) for verb in verbs)

    def _everywhere(self) -> None:
        if self._current.startswith("-"):
            texts = {name: text for names, text in EVERYWHERE for name in names.split(", ")}
            self._offer((name, texts.get(name, "print the version")) for name in GLOBAL_FLAGS)

    def _in_program(self, words: list[str]) -> None:
        command, _ = find_command(expand(take_flags(words)[0]))
        if command is not None and _table()[command.words]["program"]:
            self.shell_part = f"program {words.index('--') + 1}"

    def _of_command(self, typed: list[str]) -> None:
        command, rest = find_command(typed)
        if command is None:
            return
        if not rest:
            self._commands(list(command.path))
        grammar = _table()[command.words]
        options = {name: option for option in grammar["options"] for name in option["names"]}
        plain: list[str] = []
        given: set[str] = set()
        pending: Mapping[str, Any] | None = None
        for word in rest:
            if pending is not None:
                pending = None
            elif len(word) > 1 and word[0] == "-":
                name, equals, _ = word.partition("=")
                option = options.get(name)
                if option is not None:
                    given |= set() if option["many"] else set(option["names"])
                    pending = option if option["value"] and not equals else None
            else:
                plain.append(word)
        name, equals, _ = self._current.partition("=")
        if pending is not None:
            self._value(pending["completes"])
        elif name in options and equals:
            self._head = f"{name}="
            self._value(options[name]["completes"])
        elif self._current.startswith("-"):
            self._offer((one, option["help"]) for one, option in options.items() if one not in given)
            self._everywhere()
        else:
            self._positional(grammar, plain)

    def _positional(self, grammar: Mapping[str, Any], plain: list[str]) -> None:
        arguments = grammar["arguments"]
        if arguments and "=" in "".join([*plain, self._current]) and arguments[-1]["many"]:
            # A setting may stand in place of the recipe, if a program follows.
            argument = arguments[-1]
        elif len(plain) < len(arguments):
            argument = arguments[len(plain)]
        elif arguments and arguments[-1]["many"]:
            argument = arguments[-1]
        else:
            return
        completes = argument["completes"]
        if argument["keys"]:
            self._settings(argument["keys"], {})
        elif isinstance(completes, str) and completes.startswith(_SETTING):
            self._settings_of(completes.removeprefix(_SETTING).strip() or "".join(plain[:1]), grammar["settings"])
        else:
            self._value(completes)
            if self._current and not plain:
                self._offer((f"{key}=", text) for key, text in grammar["settings"].items())

    def _value(self, completes: str | list[str]) -> None:
        if isinstance(completes, list):
            # Lists of words are separated by commas.
            before = self._current[len(self._head) :].rpartition(",")
            self._head += before[0] + before[1]
            self._offer((word, "") for word in completes)
            return
        for kind in completes.split():
            if kind in ("file", "folder"):
                self.shell_part = f"{kind}s"
            else:
                self._offer(_NAMES[kind](_settings_here()))

    def _settings_of(self, recipe: str, of_program: Mapping[str, str]) -> None:
        for name, entry in _recipes(_settings_here()).items():
            if recipe and recipe in (name, name.rpartition("/")[2]):
                leaves = dict(_leaves(entry["args"]))
                self._settings({key: str(body.get("description", "")) for key, body in leaves.items()}, leaves)
                return
        self._settings(of_program, {})

    def _settings(self, keys: Mapping[str, str], bodies: Mapping[str, Mapping[str, Any]]) -> None:
        sign = self._current[: len(self._current) - len(self._current.lstrip("+~"))]
        key, equals, _ = self._current.removeprefix(sign).partition("=")
        if not equals:
            self._head = sign
            self._offer((f"{name}=", text) for name, text in keys.items())
            return
        self._head = f"{sign}{key}="
        if key in keys:
            choices = _choices(bodies.get(key, {}))
            if choices:
                self._value(choices)
            else:
                # It may be a path; what is not one matches no file.
                self.shell_part = "files"


def _leaves(schema: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Mapping[str, Any]]]:
    for name, body in schema.get("properties", {}).items():
        if "properties" in body:
            yield from _leaves(body, f"{before}{name}.")
        else:
            yield f"{before}{name}", body


def _choices(body: Mapping[str, Any]) -> list[str]:
    """Return the values of a setting that has only a few."""
    found = [str(value) for value in body.get("enum", ()) if value is not None]
    if body.get("type") == "boolean":
        found += ["true", "false"]
    inner = [*body.get("anyOf", ()), *([body["items"]] if isinstance(body.get("items"), dict) else ())]
    return [*found, *(value for one in inner for value in _choices(one))]


# What this home knows.


def _table() -> dict[str, Any]:
    found = _read(TABLE)
    if not isinstance(found, dict):
        raise TypeError
    return found


def _settings_here() -> AppSettings:
    from stoker.api.app_parts import read_settings

    return read_settings(os.environ, os.getcwd())


def _read(path: str) -> Any:
    """Return what a JSON file holds; None if it can't be read."""
    from json import loads

    try:
        with open(path, "rb") as file:
            return loads(file.read(_LARGEST_BYTES))
    except (OSError, ValueError):
        return None


def _recipes(settings: AppSettings) -> dict[str, dict[str, Any]]:
    """Return the recipes of the index, which any command that reads recipes writes; it may be out of date."""
    index = _read(os.path.join(settings.state, "cookbooks.json"))
    return {entry["name"]: entry for entry in index["recipes"]} if index else {}


def _recipe_rows(settings: AppSettings) -> Iterable[tuple[str, str]]:
    return [(name, entry["summary"]) for name, entry in _recipes(settings).items() if name != "command"]


def _job_rows(settings: AppSettings) -> Iterable[tuple[str, str]]:
    """Return the names of the newest jobs of this machine, and of fleet jobs that a command has shown here."""
    yield "last", "the newest job"
    for attempt in _newest(settings.runs):
        job = _read(os.path.join(settings.runs, attempt, "job.json"))
        if isinstance(job, dict):
            yield str(job.get("name")), str(job.get("recipe"))
    for name in _seen(settings.state, "jobs"):
        yield name, "fleet"


def _machine_rows(settings: AppSettings) -> Iterable[tuple[str, str]]:
    for name in [*_seen(settings.state, "machines"), *_newest(os.path.join(settings.state, "worker"))]:
        yield name, ""


def _ref_rows(settings: AppSettings) -> Iterable[tuple[str, str]]:
    files = _newest(os.path.join(settings.store, "refs"))
    for name in [file.removesuffix(_REF) for file in files if file.endswith(_REF)]:
        if "%" in name:
            from urllib.parse import unquote

            name = unquote(name, errors="surrogateescape")  # noqa: PLW2901 - as it was typed
        yield name, "stored tree"


def _newest(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder), reverse=True)[:_MOST_JOBS]
    except OSError:
        return []


_NAMES = {"job": _job_rows, "machine": _machine_rows, "recipe": _recipe_rows, "ref": _ref_rows}


# Names of the fleet, remembered when a command shows them.

_SEEN = "seen.json"
_MOST_SEEN = 500


def remember(state: str, kind: str, names: Iterable[str], *, is_all: bool = False) -> None:
    """Store names of fleet jobs or machines for completion; `is_all` drops the earlier ones. Failures are ignored."""
    path = os.path.join(state, _SEEN)
    before = _read(path)
    seen = before if isinstance(before, dict) else {}
    kept = [] if is_all else _seen(state, kind)
    # A sweep is remembered once, without the numbers of its points.
    found = dict.fromkeys(name.partition("/")[0] for name in names)
    after = {**seen, kind: list(dict.fromkeys([*found, *kept]))[:_MOST_SEEN]}
    if after == before or not os.path.isdir(state):
        return
    from stoker.core.errors import StokerError
    from stoker.core.jsontext import dumps
    from stoker.host.durable import write_file

    try:
        write_file(path, dumps(after).encode(), mode=0o600)
    except (StokerError, OSError):
        return


def _seen(state: str, kind: str) -> list[str]:
    found = _read(os.path.join(state, _SEEN))
    return [str(name) for name in found.get(kind, ())] if isinstance(found, dict) else []


# The line of bash, which passes words as they were typed and inserts words as they are.

_BLANKS = " \t\n"


class _BashLine:
    """A command line up to the cursor: its words without quotes, and how the last one is continued."""

    def __init__(self, line: str, breaks: str) -> None:
        self.words: list[str] = []
        self.current = ""
        self._quote = ""
        """The quote that is open at the cursor."""
        self._kept = 0
        """Length of the part of the last word that readline does not replace."""
        self._has_closed = False
        """True if a quoted part of the last word has ended: what readline replaces then is not known."""
        self._is_word = False
        is_escaped = False
        for char in line:
            if is_escaped:
                kept = "" if not self._quote or char in '"$`\\' else "\\"
                self._add(f"{kept}{char}")
                is_escaped = False
            elif char == "\\" and self._quote != "'":
                is_escaped = True
            elif self._quote:
                self._in_quotes(char)
            else:
                self._plain(char, breaks)
        del self.words[:1]

    def _add(self, text: str) -> None:
        self.current += text
        self._is_word = True

    def _in_quotes(self, char: str) -> None:
        if char == self._quote:
            self._quote, self._has_closed = "", True
        else:
            self._add(char)

    def _plain(self, char: str, breaks: str) -> None:
        if char in "'\"":
            self._quote, self._kept, self._is_word = char, len(self.current), True
        elif char in _BLANKS:
            if self._is_word:
                self.words.append(self.current)
            self.current, self._kept, self._is_word, self._has_closed = "", 0, False, False
        else:
            self._add(char)
            if char in breaks:
                self._kept = len(self.current)

    def insertion(self, word: str) -> str:
        """Return the text by which bash replaces its part of the last word; nothing if it can't be quoted."""
        text = word[self._kept :]
        if self._quote == "'":
            return "" if "'" in text else text
        if self._quote:
            return "" if "!" in text else "".join(f"\\{char}" if char in '"$`\\' else char for char in text)
        if self._has_closed:
            return ""
        quoted = "".join(char if char.isalnum() or char in "%+,-./:=@_" else f"\\{char}" for char in text)
        return quoted if word.endswith("=") else f"{quoted} "
