"""The options of a training script, found in its syntax: the script is not run.

    argparse, optparse        parser.add_argument("--lr", type=float, default=1e-3)
    click, typer              @click.option("--lr"); the parameters of a typer command
    Hydra                     @hydra.main(config_path=…, config_name=…), and the keys of that file
    absl                      flags.DEFINE_float("lr", 1e-3, "…")
    HfArgumentParser, tyro    the fields of the dataclasses that they are called with
    fire                      fire.Fire(train)
    configurator              constants of the module that exec(open("configurator.py").read()) overrides
    sys.argv                  sys.argv.index("--lr")

What is computed is not seen: an option in a loop, a default from a function. A script may import the module that
declares its options, if that is beside it.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.config.config_file import read_config
from stoker.core.errors import Diagnostic, StokerError
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.jobs.script_syntax import (
    UNKNOWN,
    ModuleSyntax,
    annotated_parts,
    argument,
    called,
    decorators,
    literal_choices,
    receiver,
    type_name,
)

MOST_OPTIONS = 500
_MOST_NESTED = 8
_LONGEST_HELP = 60
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_FLAG = re.compile(r"-{1,2}[A-Za-z][\w.-]*", re.ASCII)
_OPEN = re.compile(r"[\w./-]{1,200}\.py", re.ASCII)
_COMMANDS = ("train", "fit", "main", "run")
"""Names of the command to choose where a script has several."""


@frozen
class ScriptOption:
    """One option of a script."""

    name: str
    """Of the job's parameter that is its value: `lr`, `optim.lr`."""
    words: tuple[str, ...]
    """How it is passed: `--lr {lr}`, `--lr={lr}`, `optim.lr={optim.lr}`, `{data}`; a switch is its flag alone."""
    type: str = ""
    """`int`, `float`, `str` or `bool`; empty: unknown."""
    default: Any = None
    """None if there is none, or only a run would compute it."""
    choices: tuple[Any, ...] = ()
    help: str = ""
    is_required: bool = False

    @property
    def is_switch(self) -> bool:
        """True if it takes no value."""
        return not any("{" in word for word in self.words)

    @property
    def key(self) -> str:
        """Its last part in lower case, as the usual names are written."""
        return self.name.rpartition(".")[2].lower().strip("_")

    def filled(self, text: str) -> tuple[str, ...]:
        """Return its words with another text in the place of its value."""
        return tuple(word.replace(f"{{{self.name}}}", text) for word in self.words)


FoundOptions = tuple[list[ScriptOption], tuple[str, ...]]
"""Options, and the words before them."""


class OptionReader:
    """Reads the options of one module, in whatever way it declares them."""

    def __init__(
        self, module: ModuleSyntax, modules: Sequence[ModuleSyntax], folder: str, reserved: frozenset[str]
    ) -> None:
        self.module = module
        self.folder = folder
        self.reserved = reserved
        self.classes = {name: node for one in reversed(modules) for name, node in one.classes.items()}

    def read(self) -> tuple[str, FoundOptions]:
        """Return the style and the options; an empty style if there are none."""
        styles: tuple[tuple[str, Callable[[], FoundOptions]], ...] = (
            ("hydra", self.hydra),
            ("HfArgumentParser", self.hf_parser),
            ("tyro", self.tyro),
            ("configurator", self.configurator),
            ("typer", self.typer),
            ("click", self.click),
            ("absl", self.absl),
            ("fire", self.fire),
            ("argparse", self.argparse),
            ("sys.argv", self.sys_argv),
        )
        for style, read in styles:
            found = read()
            if found[0]:
                return style, found
        return "", ([], ())

    def option(self, name: str, form: str, **facts: Any) -> list[ScriptOption]:
        """Return an option; none if its name can't be a parameter's. In `form`, `{}` is the place of its value."""
        name = name.replace("-", "_")
        if _NAME.fullmatch(name) is None:
            return []
        top, dot, rest = name.partition(".")
        if top in self.reserved:
            # It would be a setting of Stoker's own.
            name = f"{top}_{dot}{rest}"
        default = facts.pop("default", None)
        default = None if default is UNKNOWN or isinstance(default, list) else default
        kind = facts.pop("type", "") or (type(default).__name__ if type(default) in (int, float, str, bool) else "")
        help_text = one_line(facts.pop("help", ""), _LONGEST_HELP)
        words = tuple(word.replace("{}", f"{{{name}}}") for word in form.split(" "))
        return [ScriptOption(name=name, words=words, default=default, type=kind, help=help_text, **facts)]

    # argparse and optparse

    def argparse(self) -> FoundOptions:
        parsers = self._parsers()
        found: dict[str, list[ScriptOption]] = {}
        for call in self.module.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("add_argument", "add_option"):
                command = parsers.get(receiver(call.func.value), "")
                found.setdefault(command, []).extend(self._argument(call))
        commands = [command for command in found if command]
        chosen = _chosen(commands)
        return [*found.get("", ()), *found.get(chosen, ())] if chosen else found.get("", []), (
            chosen,
        ) if chosen else ()

    def _parsers(self) -> dict[str, str]:
        """Return the command of each variable that holds the parser of a command, or a group of its options."""
        parsers: dict[str, str] = {}
        for node in self.module.assigned:
            call, target = node.value, node.targets[0]
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr == "add_parser":
                parsers[called(target)] = self.module.text(call, "name", 0)
            elif call.func.attr in ("add_argument_group", "add_mutually_exclusive_group"):
                parsers[called(target)] = parsers.get(receiver(call.func.value), "")
        return parsers

    def _argument(self, call: ast.Call) -> list[ScriptOption]:
        texts = [text for text in map(self.module.value, call.args) if isinstance(text, str)]
        flag = _longest_flag(texts)
        action = self.module.keyword(call, "action")
        if not texts or action in ("help", "version"):
            return []
        name = self.module.text(call, "dest") or (flag.lstrip("-") if flag else texts[0])
        is_optional_place = self.module.keyword(call, "nargs") in ("?", "*")
        is_switch = action in ("store_true", "store_false", "store_const", "count") or _is_switch_class(call)
        return self.option(
            name,
            flag if flag and is_switch else f"{flag} {{}}" if flag else "{}",
            default=self.module.keyword(call, "default"),
            type="bool" if is_switch else type_name(argument(call, "type")),
            choices=_choices(self.module.keyword(call, "choices")),
            help=self.module.text(call, "help"),
            is_required=self.module.keyword(call, "required") is True if flag else not is_optional_place,
        )

    # click and typer

    def click(self) -> FoundOptions:
        if not self.module.is_importing("click", "rich_click"):
            return [], ()
        found: dict[str, list[ScriptOption]] = {}
        commands: dict[str, str] = {}
        for name, function in self.module.functions.items():
            for call in decorators(function):
                last = called(call.func).rpartition(".")[2]
                if last in ("option", "argument"):
                    found.setdefault(name, []).extend(self._click_option(call, is_place=last == "argument"))
                elif last == "command" and called(call.func) not in ("click.command", "command"):
                    commands[name] = self.module.text(call, "name", 0) or name.replace("_", "-")
        chosen = _chosen(list(found))
        return found.get(chosen, []), (commands[chosen],) if chosen in commands else ()

    def _click_option(self, call: ast.Call, *, is_place: bool) -> list[ScriptOption]:
        texts = [text for text in map(self.module.value, call.args) if isinstance(text, str)]
        # "--shuffle/--no-shuffle" is a switch.
        flag = _longest_flag([text.partition("/")[0].strip() for text in texts])
        name = next((text for text in texts if text.isidentifier()), flag.lstrip("-"))
        is_switch = any("/" in text for text in texts) or self.module.keyword(call, "is_flag") is True
        kind = argument(call, "type")
        choices = UNKNOWN
        if isinstance(kind, ast.Call) and called(kind.func).endswith("Choice"):
            choices = self.module.keyword(kind, "choices", 0)
        has_default = argument(call, "default") is not None
        return self.option(
            name,
            flag if is_switch else "{}" if is_place else f"{flag} {{}}",
            default=self.module.keyword(call, "default"),
            type="bool" if is_switch else type_name(kind),
            choices=_choices(choices),
            help=self.module.text(call, "help"),
            is_required=self.module.keyword(call, "required") is True or (is_place and not has_default),
        )

    def typer(self) -> FoundOptions:
        if not self.module.is_importing("typer"):
            return [], ()
        commands: dict[str, str] = {}
        for name, function in self.module.functions.items():
            for call in decorators(function):
                if called(call.func).endswith(".command"):
                    commands[name] = self.module.text(call, "name", 0) or name.replace("_", "-")
        for call in self.module.calls:
            if (
                called(call.func) in ("typer.run", "run")
                and call.args
                and called(call.args[0]) in self.module.functions
            ):
                return self._parameters(called(call.args[0]), self._typer_option), ()
        chosen = _chosen(list(commands))
        words = (commands[chosen],) if len(commands) > 1 else ()
        return (self._parameters(chosen, self._typer_option), words) if chosen else ([], ())

    def _parameters(
        self, function: str, make: Callable[[ast.arg, ast.expr | None], list[ScriptOption]]
    ) -> list[ScriptOption]:
        arguments = self.module.functions[function].args
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
        pairs = [*zip(plain, [*defaults, *arguments.defaults], strict=True)]
        pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        return [option for one, default in pairs if one.arg not in ("self", "cls") for option in make(one, default)]

    def _typer_option(self, parameter: ast.arg, default: ast.expr | None) -> list[ScriptOption]:
        declared = next(filter(_is_typer, (default, *annotated_parts(parameter.annotation))), None)
        if type_name(parameter.annotation) == "Context":
            return []
        value = self.module.value(default)
        has_default = default is not None
        flags: list[str] = []
        help_text, is_place = "", not has_default
        if isinstance(declared, ast.Call):
            is_place = called(declared.func).endswith("Argument")
            help_text = self.module.text(declared, "help")
            texts = [text for text in map(self.module.value, declared.args) if isinstance(text, str)]
            flags = [text for text in texts if text.startswith("-")]
            if declared is default:
                first = argument(declared, "default", 0)
                value = self.module.value(first)
                # typer.Option(...) means that it is required.
                has_default = first is not None and not (isinstance(first, ast.Constant) and first.value is ...)
        kind = type_name(parameter.annotation)
        is_switch = (kind or type(value).__name__) == "bool" and not is_place
        flag = _longest_flag([one.partition("/")[0] for one in flags]) or f"--{parameter.arg.replace('_', '-')}"
        return self.option(
            parameter.arg,
            flag if is_switch else "{}" if is_place else f"{flag} {{}}",
            default=value,
            type=kind,
            choices=literal_choices(parameter.annotation),
            help=help_text,
            is_required=not has_default,
        )

    # absl

    def absl(self) -> FoundOptions:
        found: list[ScriptOption] = []
        needed = {
            text
            for call in self.module.calls
            if called(call.func).endswith(("mark_flag_as_required", "mark_flags_as_required"))
            for text in _flat(self.module.value(one) for one in call.args)
        }
        for call in self.module.calls:
            kind = _ABSL.get(called(call.func).rpartition(".")[2])
            name = self.module.text(call, "name", 0)
            if kind is None or not name:
                continue
            is_enum = called(call.func).endswith("DEFINE_enum")
            found += self.option(
                name,
                f"--{name}={{}}",
                default=self.module.keyword(call, "default", 1),
                type=kind,
                choices=_choices(self.module.keyword(call, "enum_values", 2)) if is_enum else (),
                help=self.module.text(call, "help", 3 if is_enum else 2),
                is_required=name in needed or self.module.keyword(call, "required") is True,
            )
        return found, ()

    # fire, and nanoGPT's configurator

    def fire(self) -> FoundOptions:
        for call in self.module.calls:
            if called(call.func) not in ("fire.Fire", "Fire") or not self.module.is_importing("fire"):
                continue
            if not call.args:
                top = [node.name for node in self.module.body if isinstance(node, ast.FunctionDef)]
                chosen = _chosen(top)
                return (self._parameters(chosen, self._fire_option), (chosen,)) if chosen else ([], ())
            name = called(call.args[0])
            if name in self.module.functions:
                return self._parameters(name, self._fire_option), ()
        return [], ()

    def _fire_option(self, parameter: ast.arg, default: ast.expr | None) -> list[ScriptOption]:
        return self._plain_parameter(parameter, default, "--{name}={{}}")

    def _plain_parameter(self, parameter: ast.arg, default: ast.expr | None, form: str) -> list[ScriptOption]:
        return self.option(
            parameter.arg,
            form.format(name=parameter.arg),
            default=self.module.value(default),
            type=type_name(parameter.annotation),
            choices=literal_choices(parameter.annotation),
            is_required=default is None,
        )

    def configurator(self) -> FoundOptions:
        found: list[ScriptOption] = []
        for node in self.module.body:
            if isinstance(node, ast.Expr) and _is_exec_of_file(node.value):
                return found, ()
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name, value = node.targets[0].id, self.module.value(node.value)
                if not name.startswith("_") and type(value) in (int, float, bool, str):
                    found += self.option(name, f"--{name}={{}}", default=value)
        return [], ()

    def sys_argv(self) -> FoundOptions:
        found: list[ScriptOption] = []
        for call in self.module.calls:
            flag = self.module.text(call, "", 0)
            if called(call.func) == "sys.argv.index" and _FLAG.fullmatch(flag):
                found += self.option(flag.lstrip("-"), f"{flag} {{}}")
        return found, ()

    # Dataclasses: HfArgumentParser, TrlParser, tyro

    def hf_parser(self) -> FoundOptions:
        for call in self.module.calls:
            first = argument(call, "dataclass_types", 0)
            if first is not None and called(call.func).endswith(("HfArgumentParser", "TrlParser")):
                classes = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
                found = [option for one in classes for option in self._fields(called(one), "--{name} {{}}")]
                # Without these switches the usual scripts do nothing.
                return found, tuple(f"--{one}" for one in ("do_train", "do_eval") if one in self.module.names)
        return [], ()

    def tyro(self) -> FoundOptions:
        for call in self.module.calls:
            name = called(call.args[0]) if call.args else ""
            if called(call.func) == "tyro.cli" and name in self.classes:
                return [*self._fields(name, "--{name} {{}}", is_nested=True)], ()
            if called(call.func) == "tyro.cli" and name in self.module.functions:
                return self._parameters(name, self._tyro_option), ()
        return [], ()

    def _tyro_option(self, parameter: ast.arg, default: ast.expr | None) -> list[ScriptOption]:
        return self._plain_parameter(parameter, default, "--{name} {{}}")

    def _fields(
        self, name: str, form: str, prefix: str = "", *, is_nested: bool = False, depth: int = 0
    ) -> Iterator[ScriptOption]:
        """Return the fields of a dataclass and of those that it inherits from; `form` has a place for the name."""
        name = name.rpartition(".")[2]
        if name in _TRAINING_ARGUMENTS:
            for field, kind, default in _TRAINER_FIELDS:
                own = _TRAINING_ARGUMENTS[name] if field == "learning_rate" else default
                yield from self.option(field, form.format(name=field), type=kind, default=own)
        node = self.classes.get(name)
        if node is None or depth > _MOST_NESTED:
            return
        for base in node.bases:
            if called(base) != name:
                yield from self._fields(called(base), form, prefix, is_nested=is_nested, depth=depth + 1)
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            field, kind = f"{prefix}{statement.target.id}", type_name(statement.annotation)
            if is_nested and kind in self.classes:
                yield from self._fields(kind, form, f"{field}.", is_nested=True, depth=depth + 1)
                continue
            default, has_default, help_text = statement.value, statement.value is not None, ""
            if isinstance(default, ast.Call):
                has_default = any(keyword.arg in ("default", "default_factory") for keyword in default.keywords)
                help_text = self._metadata_help(default)
                default = argument(default, "default")
            yield from self.option(
                field,
                form.format(name=field),
                default=self.module.value(default),
                type=kind,
                choices=literal_choices(statement.annotation),
                help=help_text,
                is_required=not has_default,
            )

    def _metadata_help(self, call: ast.Call) -> str:
        metadata = argument(call, "metadata")
        for key, value in zip(metadata.keys, metadata.values, strict=True) if isinstance(metadata, ast.Dict) else ():
            text = self.module.value(value)
            if self.module.value(key) == "help" and isinstance(text, str):
                return text
        return self.module.text(call, "help")

    # Hydra

    def hydra(self) -> FoundOptions:
        for function in self.module.functions.values():
            for call in decorators(function):
                if called(call.func) != "hydra.main":
                    continue
                folder = os.path.join(self.folder, self.module.text(call, "config_path", 0))
                name = self.module.text(call, "config_name", 1).removesuffix(".yaml")
                found = [
                    option
                    for path, value in _hydra_values(folder, name).items()
                    for option in self.option(
                        path,
                        f"{path}={{}}",
                        default=None if value == "???" or "${" in str(value) else value,
                        is_required=value == "???",
                    )
                ]
                found = found or [*self._stored_fields(name)]
                return ([*found, *self.option(RUN_DIR, f"{RUN_DIR}={{}}", type="str")], ()) if found else ([], ())
        return [], ()

    def _stored_fields(self, name: str) -> Iterator[ScriptOption]:
        """Return the fields of the class that a script stores under the name of its configuration."""
        for call in self.module.calls:
            if called(call.func).rpartition(".")[2] == "store" and self.module.keyword(call, "name") == name:
                node = argument(call, "node")
                node = node.func if isinstance(node, ast.Call) else node
                yield from self._fields(called(node) if node is not None else "", "{name}={{}}", is_nested=True)


RUN_DIR = "hydra.run.dir"
_ABSL = {
    "DEFINE_float": "float", "DEFINE_integer": "int", "DEFINE_string": "str", "DEFINE_bool": "bool",
    "DEFINE_boolean": "bool", "DEFINE_enum": "str", "DEFINE_config_file": "str",
}  # fmt: skip
_TRAINING_ARGUMENTS = {
    "TrainingArguments": 5e-5, "Seq2SeqTrainingArguments": 5e-5, "SFTConfig": 2e-5, "DPOConfig": 1e-6,
    "GRPOConfig": 1e-6, "RewardConfig": 1e-4,
}  # fmt: skip
"""Classes of transformers and trl that a script may parse, each with its default learning rate."""
_TRAINER_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("output_dir", "str", None),
    ("learning_rate", "float", 5e-5),
    ("seed", "int", 42),
    ("num_train_epochs", "float", 3.0),
    ("max_steps", "int", -1),
    ("per_device_train_batch_size", "int", 8),
    ("weight_decay", "float", 0.0),
    ("warmup_ratio", "float", 0.0),
)


def _hydra_values(folder: str, name: str) -> dict[str, Any]:
    """Return the leaves of a configuration and of the group options that it chooses, by dotted path."""
    tree = _yaml(os.path.join(folder, f"{name}.yaml"))
    defaults = tree.pop("defaults", [])
    values: dict[str, Any] = {}
    for entry in defaults[:MOST_OPTIONS] if isinstance(defaults, list) else ():
        for group, option in entry.items() if isinstance(entry, dict) else ():
            if _NAME.fullmatch(group) and isinstance(option, str) and re.fullmatch(r"[\w-]+", option, re.ASCII):
                values |= dict(_leaves(_yaml(os.path.join(folder, group, f"{option}.yaml")), f"{group}."))
    values |= dict(_leaves(tree))
    return {path: value for path, value in values.items() if path.partition(".")[0] != "hydra"}


def _yaml(path: str) -> dict[str, Any]:
    faults: list[Diagnostic] = []
    try:
        # A pipe of that name would block.
        tree = read_config(path, path, faults)[1] if os.path.isfile(path) else None
    except StokerError:
        return {}
    return tree.plain() if tree is not None else {}


def _leaves(tree: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and depth < _MOST_NESTED:
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        elif not isinstance(value, dict | list):
            yield f"{prefix}{key}", value


def _is_typer(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and called(node.func).rpartition(".")[2] in ("Option", "Argument")


def _is_switch_class(call: ast.Call) -> bool:
    action = argument(call, "action")
    return action is not None and called(action).endswith("BooleanOptionalAction")


def _is_exec_of_file(node: ast.expr) -> bool:
    """Return True for `exec(open("configurator.py").read())`."""
    if not isinstance(node, ast.Call) or called(node.func) != "exec" or not node.args:
        return False
    texts = (one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant))
    return any(isinstance(text, str) and _OPEN.fullmatch(text) for text in texts)


def _chosen(names: Sequence[str]) -> str:
    """Return the command to use of several: one that trains, else the first."""
    return next((name for one in _COMMANDS for name in names if name == one), names[0] if names else "")


def _longest_flag(texts: Iterable[str]) -> str:
    return max(
        (text for text in texts if _FLAG.fullmatch(text)),
        key=lambda text: (text.startswith("--"), len(text)),
        default="",
    )


def _choices(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) and all(type(one) in (int, float, str) for one in value) else ()


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list) else [value]
