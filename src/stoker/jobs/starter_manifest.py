"""A first manifest for a training script: which options to sweep, its text with comments, and the same as a command.

    job = StarterJob(script="train.py", found=read_script(…), sweep=suggested_sweep(…), output="out_dir", metric="loss")
    job.manifest_text()     what `stoker init` writes
    job.run_line()          stoker run lr=0.0003,0.001 -- python train.py --lr {lr} --out_dir {out}

Pure. Texts of the script are untrusted: names are letters and digits, all else stands in quotes or in comments of one
line.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.config.overrides import read_overrides
from stoker.config.sweep import Axis, AxisValue, ListedAxisValues
from stoker.config.values import text_of
from stoker.core.errors import InvalidConfig, Usage
from stoker.core.frozen import fresh, frozen
from stoker.core.text import did_you_mean_path, is_job_name, one_line
from stoker.engine.metrics.metric_names import known_direction
from stoker.jobs.pack.environment_files import FoundEnvironment
from stoker.jobs.program import PLACES, program_name
from stoker.jobs.script_options import ScriptOption
from stoker.jobs.training_script import TrainingScript

RESERVED = (*PLACES, "zip", "repeat", "concat", "axes", "exclude", "sample")
"""Names that a parameter can't have, beside the settings of a program: places, and the words of a sweep."""
FILL_IN = "FILL-IN"
"""The value of an option that the script requires, until the user sets one."""
_OUT = "{out}"
_MOST_LISTED = 40
_LONGEST_DEFAULT = 30
_WIDEST = 44


@frozen
class StarterJob:
    """The job of a script, as it was answered."""

    script: str
    """Below the folder of the manifest."""
    found: TrainingScript
    sweep: Mapping[str, str] = fresh(factory=dict)
    """Option → values as they are typed: `0.001,0.01`, `log:1e-4:1e-1:4`."""
    output: str = ""
    """The name of the option that says where results are written, or a folder that the script writes to."""
    metric: str = ""
    environment: FoundEnvironment | None = None
    values: Mapping[str, Any] = fresh(factory=dict)
    """Values of options that the script requires."""

    @property
    def name(self) -> str:
        name = program_name(("python", self.script))
        return name if is_job_name(name) else "train"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Folders that are declared because no option names them."""
        return (self.output,) if self.output and self.found.find(self.output) is None else ()

    @property
    def required(self) -> dict[str, Any]:
        """Options that the script requires and nothing else sets, with their values."""
        output = "" if self.outputs else self.output
        needed = [one for one in self.found.options if one.is_required and one.name not in (*self.sweep, output)]
        return {one.name: self.values.get(one.name, _placeholder(one)) for one in needed}

    def words(self) -> tuple[str, ...]:
        """Return the program's words, each parameter as its place."""
        words = ["python", self.script, *self.found.words]
        for option in self.found.options:
            if option.name == self.output:
                words += option.filled(_output_place(option))
            elif option.name in self.sweep or option.name in self.required:
                words += option.words
        return tuple(words)

    def run_line(self) -> str:
        """Return the command that runs the same sweep on this machine."""
        settings = [f"{name}={text_of(value)}" for name, value in self.required.items()]
        settings += [f"{name}={text}" for name, text in self.sweep.items()]
        settings += [f"outputs={name}" for name in self.outputs]
        return " ".join(["stoker", "run", *map(_quoted, settings), "--", *map(_quoted, self.words())])

    def compare_line(self) -> str:
        """Return the command that ranks the trials."""
        if not self.metric:
            return f"stoker compare {self.name}"
        direction = "" if known_direction(self.metric) is not None else " --min"
        return f"stoker compare {self.name} --by {shlex.quote(self.metric)}{direction}"

    def manifest_text(self) -> str:
        """Return the manifest."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"# Jobs of {_comment(self.script)}, written by `stoker init`. Edit it freely."
        yield "#"
        yield "#   stoker check stoker.toml               validate this file"
        yield "#   stoker submit stoker.toml --dry-run    show what would be submitted to the fleet"
        yield "#   stoker submit stoker.toml --watch      submit it, and follow the jobs"
        yield "#"
        yield "# The same on this machine, and its ranking:"
        yield f"#   {_comment(self.run_line())}"
        yield f"#   {_comment(self.compare_line())}"
        yield ""
        yield "[[jobs]]"
        yield f"name = {_toml(self.name)}"
        yield "# {name} is replaced by a value of hyper or sweep, {out} by the job's result folder."
        yield f"command = {_toml(' '.join(map(_quoted, self.words())))}"
        yield from self._output_lines()
        yield from self._environment_lines()
        if self.found.uses_device:
            yield "# A GPU if one fits, else the CPU."
            yield "prefer_cuda = true"
        if self.required:
            yield ""
            replace = f" Replace {FILL_IN}." if FILL_IN in self.required.values() else ""
            yield f"# Options that the script requires.{replace}"
            yield "[jobs.hyper]"
            yield from (f"{_key(name)} = {_toml(value)}" for name, value in self.required.items())
        yield from self._sweep_lines()
        yield from self._other_lines()

    def _output_lines(self) -> Iterator[str]:
        if self.outputs:
            yield "# Results, beside $STOKER_OUT: new and changed files below these folders."
            yield f"outputs = {_toml(list(self.outputs))}"
        elif not self.output:
            names = self.found.folders or ("runs",)
            yield "# The result is what the script writes to $STOKER_OUT; or name a folder that it writes to:"
            yield f"# outputs = {_toml([f'{one}/' for one in names])}"

    def _environment_lines(self) -> Iterator[str]:
        found = self.environment
        if found is not None and not found.hint:
            yield "# Each machine of the fleet installs these packages. `stoker run` uses your own Python."
            yield f"env = {_toml(found.path)}"
            return
        if found is not None:
            yield f"# {found.path} can't be installed on other machines: {_comment(found.hint)}"
        yield "# Packages for the machines of a fleet: uv.lock, requirements.txt or pyproject.toml."
        yield '# env = "requirements.txt"'

    def _sweep_lines(self) -> Iterator[str]:
        yield ""
        if not self.sweep:
            yield "# A sweep makes one job for each point:"
            yield "# [jobs.sweep]"
            yield "# lr = [1e-3, 1e-4]"
            return
        yield '# One job for each point; the first axis changes slowest. Also: lr = "log:1e-4:1e-1:4".'
        yield "[jobs.sweep]"
        for name, text in self.sweep.items():
            option = self.found.find(name)
            note = _about(option) if option is not None else ""
            yield f"{_key(name)} = {_toml(_axis_value(name, text))}{f'  # {note}' if note else ''}"

    def _other_lines(self) -> Iterator[str]:
        used = {*self.sweep, *self.required, self.output}
        others = [option for option in self.found.options if option.name not in used]
        if not others:
            return
        yield ""
        yield f"# Other options of {_comment(self.script)}. Add one to command, and its values to sweep or hyper."
        rows = [(" ".join(option.words), _about(option)) for option in others[:_MOST_LISTED]]
        width = min(_WIDEST, max(len(words) for words, _ in rows))
        yield from (f"#   {words:<{width}}  {about}".rstrip() for words, about in rows)
        if len(others) > _MOST_LISTED:
            yield f"#   and {len(others) - _MOST_LISTED} more"


def read_sweep_answer(answer: str, found: TrainingScript) -> dict[str, str]:
    """Read `lr seed=0,1`: options with their values, or alone with suggested ones.

    Raises `Usage` or `InvalidConfig` for a name that is no option, or values that can't be parsed.
    """
    sweep: dict[str, str] = {}
    for word in answer.replace("--", " ").split():
        typed, equals, text = word.partition("=")
        option = found.find(typed) or found.find(typed.replace("-", "_"))
        if option is None or option.is_switch:
            names = [one.name for one in found.options if not one.is_switch]
            reason = "takes no value" if option is not None else "is no option of the script"
            raise Usage(f"{typed!r} {reason}", hint=did_you_mean_path(typed, names))
        if not equals:
            values = suggested_values(option)
            if not values:
                raise Usage(f"{typed} needs values", hint=f"{typed}=1,2,3")
            text = values_text(values)
        _, faults = read_overrides([f"{option.name}={text}"])
        if faults:
            raise InvalidConfig(str(faults[0]), faults=tuple(faults))
        sweep[option.name] = text
    return sweep


def values_text(values: Sequence[Any]) -> str:
    """Return values as they are typed."""
    return ",".join(map(text_of, values))


def _axis_value(name: str, text: str) -> Any:
    """Return the values of an axis for a file: a list, or a range as text."""
    overrides, _ = read_overrides([f"{name}={text}"])
    value = overrides[0].value
    if isinstance(value, AxisValue):
        return [value.value]
    if isinstance(value, Axis) and isinstance(value.choices, ListedAxisValues):
        return [one.value for one in value.choices]
    return text


def _placeholder(option: ScriptOption) -> Any:
    if option.choices:
        return option.choices[0]
    return FILL_IN if option.default is None else option.default


def _output_place(option: ScriptOption) -> str:
    """Return the job's result folder, or a file in it if the option names a file."""
    default = option.default if isinstance(option.default, str) else ""
    name = os.path.basename(default)
    has_suffix = bool(os.path.splitext(name)[1]) and name.replace(".", "").replace("_", "").replace("-", "").isalnum()
    return f"{_OUT}/{name}" if has_suffix else _OUT


def _about(option: ScriptOption) -> str:
    """Return what is known of an option, as the end of a comment."""
    default = "" if option.default is None else f"default: {one_line(str(option.default), _LONGEST_DEFAULT)}"
    choices = f"one of {', '.join(map(str, option.choices))}" if option.choices else ""
    return _comment("; ".join(filter(None, (default, choices, option.help))))


def _comment(text: str) -> str:
    return one_line(text)


def _quoted(word: str) -> str:
    """Quote a word for a shell; braces and commas are plain there."""
    is_plain = word.isascii() and word.replace("{", "").replace("}", "") == shlex.quote(
        word.replace("{", "").replace("}", "")
    )
    return word if is_plain and word else shlex.quote(word)


def _key(name: str) -> str:
    return _toml(name) if "." in name else name


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    # JSON's texts are TOML's, apart from this one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


# Values to begin a sweep with.

_RATES = ("lr", "learning_rate", "base_lr", "max_lr", "init_lr", "initial_lr", "lr0", "eta", "step_size")
_SEEDS = ("seed", "random_seed", "random_state", "manual_seed", "manualseed", "rng_seed")
_NEXT = (
    "weight_decay", "wd", "batch_size", "per_device_train_batch_size", "dropout", "hidden", "hidden_size", "hidden_dim",
    "width", "n_embd", "nhid", "depth", "num_layers", "n_layer", "n_layers", "nlayers", "max_depth", "momentum",
    "gamma", "alpha", "beta", "temperature",
)  # fmt: skip
_USUAL_RATES = (1e-4, 3e-4, 1e-3)
_MOST_CHOICES = 4


def suggested_sweep(options: Sequence[ScriptOption]) -> dict[str, tuple[Any, ...]]:
    """Return axes to begin with: the learning rate, or else another setting that matters, and the seed."""
    by_key: dict[str, ScriptOption] = {}
    for option in options:
        if suggested_values(option):
            by_key.setdefault(option.key, option)
    first = next((by_key[key] for key in (*_RATES, *_NEXT) if key in by_key), None)
    seed = next((by_key[key] for key in _SEEDS if key in by_key), None)
    return {option.name: suggested_values(option) for option in (first, seed) if option is not None}


def suggested_values(option: ScriptOption) -> tuple[Any, ...]:
    """Return values around the default of an option; none if it takes none, or its default does not suggest any."""
    default, key = option.default, option.key
    if option.is_switch or option.type == "bool" or type(default) is bool:
        return ()
    if key in _SEEDS:
        first = default if type(default) is int and default >= 0 else 0
        return first, first + 1
    if option.choices:
        return option.choices[:_MOST_CHOICES]
    if type(default) in (int, float) and default > 0:
        return _around(default, key, is_whole=option.type == "int")
    if key in _RATES and option.type in ("", "float"):
        return _USUAL_RATES
    return (0.0, 0.1, 0.2) if key == "dropout" and default in (0, None) else ()


def _around(default: float, key: str, *, is_whole: bool) -> tuple[Any, ...]:
    if is_whole:
        return tuple(sorted({max(1, int(default) // 2), int(default), int(default) * 2}))
    if key in (*_RATES, "weight_decay", "wd"):
        return float(f"{default * 0.3:.1g}"), float(default), float(f"{default * 3:.1g}")
    # A share or a probability stays below 1.
    above = default * 2 if default > 1 else min(default * 2, (1 + default) / 2)
    return float(f"{default / 2:.3g}"), float(default), float(f"{above:.3g}")
