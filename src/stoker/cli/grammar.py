"""The grammar of one command: its arguments, how they are parsed, and its help text.

Declared once as data, so that parsing, `--help` and the reference page agree. All errors of a command line are reported
together, each with the nearest valid word. Not argparse: importing it takes as long as the rest of a command, it stops
at the first error, and its help layout differs between versions of Python.
"""

from __future__ import annotations

from stoker.cli.commands import EVERYWHERE, verbs_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from stoker.core.errors import StokerError


_WIDTH = 100
_FEWEST_BYTES = 2**20
"""A smaller number without a unit is an error."""

_MOST_DIGITS = 1000
"""Longer numbers are rejected: parsing them is slow."""

_LIKENESS = 0.7
"""How alike a misspelt option must be to a known one, at most 1."""


def _completes(label: str, completes: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Return what shells complete: the declared words or kinds, or else files or folders if the label says so."""
    return completes or {"FILE": "file", "PATH": "file", "DIR": "folder"}.get(label, "")


class Option:
    """An option; with `value` it takes one, and `is_many` collects several. `sets` names the field of a job it sets.

    Shells complete its value by `completes`: the words, or kinds such as `job` or `recipe file` (`completion_words`).
    """

    __slots__ = ("completes", "help", "is_many", "key", "names", "read", "sets", "value")

    def __init__(
        self,
        *names: str,
        help: str,
        value: str = "",
        read: Callable[[str], Any] = str,
        is_many: bool = False,
        sets: str = "",
        completes: str | tuple[str, ...] = "",
    ) -> None:
        self.names = names
        self.help = help
        self.value = value
        self.read = read
        self.is_many = is_many
        self.sets = sets
        self.completes = _completes(value, completes)
        self.key = names[-1].lstrip("-").replace("-", "_")

    @property
    def label(self) -> str:
        return ", ".join(f"{name} {self.value}" if self.value else name for name in self.names)

    def is_in(self, given: dict[str, Any]) -> bool:
        """Return True if it was given."""
        value = given[self.key]
        return value is not None and value is not False and value != []


AT = Option(
    "--at",
    value="URL",
    help="the coordinator (default: STOKER_COORDINATOR, the one on this machine, or the one joined)",
)


class Positional:
    """A positional argument; the last one may take many words, and help lists the `keys` of its key=value.

    Shells complete it by `completes`, as the value of an `Option`.
    """

    __slots__ = ("completes", "help", "is_many", "is_required", "key", "keys", "label")

    def __init__(  # noqa: PLR0913 - a declaration says everything at once
        self,
        label: str,
        *,
        help: str,
        key: str = "",
        is_required: bool = True,
        is_many: bool = False,
        keys: Mapping[str, str] | None = None,
        completes: str | tuple[str, ...] = "",
    ) -> None:
        self.label = label
        self.help = help
        self.key = key or label.lower()
        self.is_required = is_required
        self.is_many = is_many
        self.keys = keys or {}
        self.completes = _completes(label, completes)


class Grammar:
    """The arguments and the help of one command.

    Help lists the program's `settings`, and the exit codes of `errors`.
    """

    def __init__(  # noqa: PLR0913 - a declaration says everything at once
        self,
        words: str,
        *,
        about: str,
        positionals: tuple[Positional, ...] = (),
        options: tuple[Option, ...] = (),
        examples: tuple[str, ...],
        takes_program: bool = False,
        settings: Callable[[], list[tuple[str, str]]] | None = None,
        errors: tuple[type[StokerError], ...] = (),
    ) -> None:
        self.words = words
        self.takes_program = takes_program
        self.settings = settings
        self.errors = errors
        self.about = about
        self.positionals = positionals
        self.options = options
        self.examples = examples

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """Parse the words after the command. Raises `Usage` with all errors."""
        return _Reading(self, argv).given()

    def job_fields(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a job that the given options set, by name."""
        options = [option for option in self.options if option.sets and option.is_in(given)]
        return {one.sets: tuple(given[one.key]) if one.is_many else given[one.key] for one in options}

    def usage(self) -> str:
        parts = [f"stoker {self.words}"]
        for positional in self.positionals:
            label = f"{positional.label} …" if positional.is_many else positional.label
            parts.append(label if positional.is_required and not positional.is_many else f"[{label}]")
        if self.options:
            parts.append("[options]")
        if self.takes_program:
            parts.append("[-- PROGRAM …]")
        return " ".join(parts)

    def help(self) -> str:
        """Return the text of `--help`."""
        rows = [(positional.label, positional.help) for positional in self.positionals]
        lines = [f"usage: {self.usage()}", "", *_wrap(self.about, "")]
        sections = [
            ("", rows),
            ("keys", [row for positional in self.positionals for row in positional.keys.items()]),
            ("options", [(option.label, option.help) for option in self.options]),
            ("settings of a program", self.settings() if self.settings else []),
            ("exit codes", self._exit_codes()),
            ("verbs", [(verb.words, verb.summary) for verb in verbs_of(self.words)]),
            ("everywhere", list(EVERYWHERE)),
        ]
        width = min(28, max(len(label) for _, section in sections for label, _ in section))
        for title, section in sections:
            if section:
                lines += ["", title] if title else [""]
                for label, text in section:
                    lines += _entry(label, text, width)
        lines += ["", "examples", *(f"  {example}" for example in self.examples)]
        return "\n".join(lines) + "\n"

    def _exit_codes(self) -> list[tuple[str, str]]:
        if not self.errors:
            return []
        from stoker.core.errors import DONE, MEANINGS

        codes = sorted({DONE, *(error.exit_code for error in self.errors)})
        return [*((str(code), MEANINGS[code]) for code in codes), ("others", "see docs/reference/exit-codes.md")]


AUTO = "auto"
"""Value of `--ranks`: one rank for each GPU."""


def ranks(text: str) -> int | str:
    """Parse a number of ranks, or `auto`."""
    if text == AUTO:
        return AUTO
    from stoker.gang.rank_config import MOST_RANKS

    is_number = text.isascii() and text.isdigit() and int(text) > 0
    if not is_number or int(text) > MOST_RANKS:
        message = f"{text!r} is neither a number from 1 to {MOST_RANKS:,} nor {AUTO}"
        raise ValueError(message)
    return int(text)


def whole(at_least: int, at_most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers within limits, of at most `_MOST_DIGITS` digits."""

    def read(text: str) -> int:
        is_number = text.isascii() and text.isdigit()
        if is_number and len(text) > _MOST_DIGITS:
            message = f"a whole number of {len(text)} digits is too large"
            raise ValueError(message)
        if not is_number or int(text) < at_least:
            message = f"{text!r} is not a whole number of at least {at_least}"
            raise ValueError(message)
        if at_most is not None and int(text) > at_most:
            message = f"{text!r} is larger than {at_most:,}"
            raise ValueError(message)
        return int(text)

    return read


def duration(text: str) -> float:
    """Parse a duration such as `2h`."""
    from stoker.core.text import parse_duration

    return parse_duration(text)


def size(text: str) -> int:
    """Parse a size such as `10G`."""
    from stoker.core.text import parse_size

    return parse_size(text)


def size_with_unit(text: str) -> int:
    """Parse a size such as `6GiB`. A bare number is bytes; a small one is rejected, because its unit is missing."""
    size_bytes = size(text)
    if size_bytes < _FEWEST_BYTES and text.strip().replace(".", "", 1).isdecimal():
        message = f"{text!r} has no unit; write {text.strip()}GiB if GiB are meant"
        raise ValueError(message)
    return size_bytes


class _Reading:
    """Parses one command line."""

    def __init__(self, grammar: Grammar, argv: list[str]) -> None:
        self._grammar = grammar
        self._words = list(argv)
        self._plain: list[str] = []
        self._faults: list[str] = []
        self._hint = ""
        self._given: dict[str, Any] = {
            option.key: [] if option.is_many else None if option.value else False for option in grammar.options
        }
        if grammar.takes_program:
            self._given["program"] = None

    def given(self) -> dict[str, Any]:
        while self._words:
            word = self._words.pop(0)
            if word == "--":
                if self._grammar.takes_program:
                    self._given["program"] = self._words
                else:
                    self._plain += self._words
                break
            if len(word) > 1 and word[0] == "-":
                self._option(word)
            else:
                self._plain.append(word)
        self._place()
        if self._faults:
            from stoker.core.errors import Usage

            raise Usage("; ".join(self._faults), hint=self._hint or f"stoker help {self._grammar.words}")
        return self._given

    def _option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2:
            # -j4
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        option = next((option for option in self._grammar.options if name in option.names), None)
        if option is None:
            self._unknown_option(word)
        elif not option.value:
            if equals:
                self._faults.append(f"{name} takes no value")
            self._given[option.key] = True
        elif not equals and not self._words:
            self._faults.append(f"{name} needs a value ({option.value})")
        else:
            self._read(option, name, value if equals else self._words.pop(0))

    def _read(self, option: Option, name: str, text: str) -> None:
        try:
            value = option.read(text)
        except ValueError as error:
            self._faults.append(f"{name}: {error}")
            return
        if option.is_many:
            self._given[option.key].append(value)
        else:
            self._given[option.key] = value

    def _place(self) -> None:
        plain = self._plain
        for positional in self._grammar.positionals:
            if positional.is_many:
                self._given[positional.key], plain = plain, []
            elif plain:
                self._given[positional.key], plain = plain[0], plain[1:]
            else:
                self._given[positional.key] = ""
                if positional.is_required:
                    self._faults.append(f"{positional.label} is missing: {positional.help}")
        if plain:
            self._left_over(plain)

    def _left_over(self, plain: list[str]) -> None:
        self._hint = self._hint or instead(self._grammar.words, plain)
        verbs = [verb.path[-1] for verb in verbs_of(self._grammar.words)]
        if not verbs:
            self._faults.append(f"unexpected argument {' '.join(plain)!r}")
            return
        from stoker.core.text import did_you_mean

        self._faults.append(f"stoker {self._grammar.words}: unknown command {plain[0]!r}")
        self._hint = self._hint or did_you_mean(plain[0], verbs)
        if not self._hint and "show" in verbs:
            self._hint = f"stoker {self._grammar.words} show {plain[0]}"

    def _unknown_option(self, word: str) -> None:
        from stoker.core.text import nearest

        grammar = self._grammar
        word, _, value = word.partition("=")
        self._faults.append(f"stoker {grammar.words}: unknown option {word!r}")
        # Without dashes: every option begins with them, so they make all of them alike.
        name = word.lstrip("-")
        known = {one.lstrip("-"): one for option in grammar.options for one in option.names if one.startswith("--")}
        longer = [one for one in known if len(name) > 1 and one.startswith(name)]
        near = longer[0] if len(longer) == 1 else nearest(name, known, likeness=_LIKENESS)
        if near:
            hint = f"did you mean {known[near]!r}?"
        elif not grammar.takes_program:
            hint = ""
        elif any(positional.key == "values" for positional in grammar.positionals):
            if not value and self._words and not self._words[0].startswith("-"):
                value = self._words.pop(0)
            settings = [label.rstrip("=") for label, _ in grammar.settings()] if grammar.settings else []
            setting = nearest(name, settings, likeness=_LIKENESS) or name
            hint = f"write a setting as {setting}={value or 'VALUE'} before --; the program's own options go after --"
        else:
            hint = "the program's own options go after --"
        self._hint = self._hint or hint


def _entry(label: str, text: str, width: int) -> list[str]:
    lines = _wrap(text, " " * (width + 4))
    if len(label) > width:
        return [f"  {label}", *lines]
    return [f"  {label:<{width}}  {lines[0].lstrip()}", *lines[1:]]


def _wrap(text: str, indent: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


# Words of other tools and the command to use instead: for hints only, none of them is a command.

_INSTEAD = {
    "store": {
        "unpin": "stoker store pin NAME --remove",
        "rm": "stoker store refs NAME --remove",
        "remove": "stoker store refs NAME --remove",
        "delete": "stoker store refs NAME --remove",
        "ls": "stoker store refs",
        "list": "stoker store refs",
        "show": "stoker store refs NAME",
        "get": "stoker get NAME",
        "add": "stoker store put NAME",
        "check": "stoker store verify",
        "gc": "stoker store prune",
        "clean": "stoker store prune",
    },
    "jobs": {
        "ls": "stoker jobs",
        "list": "stoker jobs",
        "remove": "stoker jobs rm NAME",
        "delete": "stoker jobs rm NAME",
        "cancel": "stoker cancel NAME",
        "logs": "stoker logs NAME",
        "retry": "stoker jobs requeue NAME",
        "rerun": "stoker jobs requeue NAME",
        "restart": "stoker jobs requeue NAME",
        "watch": "stoker logs -f NAME",
    },
    "recipes": {
        "ls": "stoker recipes",
        "list": "stoker recipes",
        "run": "stoker run NAME",
    },
    "machines": {
        "ls": "stoker machines",
        "list": "stoker machines",
        "gpus": "stoker machines show",
        "devices": "stoker machines show",
        "check": "stoker doctor",
        "uncordon": "stoker machines open NAME",
        "resume": "stoker machines open NAME",
        "remove": "stoker machines forget NAME",
        "rm": "stoker machines forget NAME",
        "pause": "stoker pause 2h",
        "wait": "stoker machines memory --wait 6GiB -- PROGRAM",
        "queue": "stoker machines memory",
        "status": "stoker machines memory",
    },
    "cluster": {
        "ls": "stoker cluster show",
        "list": "stoker cluster show",
        "explain": "stoker cluster place FILE --explain",
        "export": "stoker machines export",
    },
}


_COMMANDS = {"download": "fetch", "pull": "fetch", "wget": "fetch", "clone": "fetch", "verify": "check"}
_COMMANDS |= {"gpu": "machines memory", "gpus": "machines memory", "nvidia-smi": "machines memory"}
_COMMANDS |= {"nodes": "machines", "hosts": "machines", "vram": "machines estimate"}
# Words of system D whose task is done by several commands here.
_REPLACED = {
    "stage": "the stages of a job: stoker explain NAME/STAGE; of a recipe: stoker recipes show NAME",
    "data": "download data: stoker fetch NAME; store your own: stoker store put PATH; use it: stoker run data=PATH …",
    "auto": "sweep the values of a script: stoker init train.py; of a recipe: stoker run RECIPE lr=1e-3,1e-4",
    "policy": "limits and shares are in the cluster file: stoker check cluster.yaml; try them: stoker admin simulate",
    "hpo": "a comma or a range makes a sweep: stoker run lr=log:1e-4:1e-1:4 -- python train.py --lr {lr}",
    "lineage": "what a result was made from: stoker explain NAME; stoker report NAME",
    "footprint": "memory before a run: stoker machines estimate; of a run: stoker jobs show NAME",
    "schedule": "when jobs start and where: stoker explain NAME; stoker admin simulate",
    "sensor": "messages about events: stoker admin notify add URL",
    "partition": "what a worker does without its coordinator: on_partition in the manifest",
}
_NOTHING_BEHIND = {
    "download-model": "stoker download-model --id NAME",
    "cluster place": "stoker cluster place FILE --cluster NAME",
    "machines memory": "stoker machines memory --wait 6GiB -- NAME …",
    "gang run": "stoker gang run --ranks 2 -- python NAME",
}


def instead_of(word: str) -> str:
    """Return a hint for a word that is no command, or an empty text."""
    if word in _REPLACED:
        return _REPLACED[word]
    command = _COMMANDS.get(word, "")
    return f"did you mean `stoker {command}`?" if command else ""


def instead(noun: str, words: list[str]) -> str:
    """Return a hint for words after a noun that are no verb of it, or an empty text."""
    if noun in _NOTHING_BEHIND:
        return f"did you mean `{_NOTHING_BEHIND[noun].replace('NAME', words[0])}`?"
    command = _INSTEAD.get(noun, {}).get(words[0], "")
    if words[1:]:
        command = command.replace("NAME", words[1])
    return f"did you mean `{command}`?" if command else ""
