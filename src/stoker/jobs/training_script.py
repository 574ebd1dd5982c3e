"""What is found in a training script without running it: its options, what it prints, where it writes.

    found = read_script("…/train.py", shown="train.py", folder="…")
    found.style             "argparse"
    found.find("lr")        the option, with its words, type and default
    found.output            "out_dir", the option that says where results are written
    found.metrics           ("val_loss", "train_loss")

Metrics are guessed from the texts of its output, and known for libraries that print by themselves.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator

from stoker.core.frozen import frozen
from stoker.engine.metrics.metric_names import is_measure, normal_name, preference, words_of
from stoker.engine.metrics.printed import PrintedMetrics
from stoker.jobs.script_options import MOST_OPTIONS, RUN_DIR, FoundOptions, OptionReader, ScriptOption
from stoker.jobs.script_syntax import ModuleSyntax, called, read_modules

_DEVICE_NAMES = frozenset({
    "cuda", "cuda:0", "accelerator", "Accelerator", "Trainer", "Seq2SeqTrainer", "SFTTrainer", "gpu", "gpus",
})  # fmt: skip
"""Names and texts of scripts that run on a GPU if there is one."""
_ON_ANY_DEVICE = ("keras", "tensorflow", "jax", "flax", "lightning", "pytorch_lightning", "ultralytics")
"""Libraries that use a GPU by themselves."""
_LIGHTNING = ("lightning", "pytorch_lightning")
_LIGHTNING_LOGS = "lightning_logs"
"""Where Lightning writes curves and checkpoints by default."""
_LONGEST_TEXT = 2000
_MOST_NESTED = 20


@frozen
class TrainingScript:
    """What was found in a script."""

    style: str
    """How it declares its options; empty if none were found."""
    options: tuple[ScriptOption, ...] = ()
    words: tuple[str, ...] = ()
    """What comes before the options: the command of a script with several, and switches that it needs."""
    metrics: tuple[str, ...] = ()
    """Metrics that it seems to print, the likeliest to rank by first."""
    folders: tuple[str, ...] = ()
    """Folders that it makes by a fixed name, below the current one."""
    uses_device: bool = False
    """It seems to run on a GPU if there is one."""

    def find(self, name: str) -> ScriptOption | None:
        return next((option for option in self.options if name == option.name), None)

    @property
    def output(self) -> str:
        """The name of the option that says where results are written, or a folder of the library; empty if unknown."""
        by_key = {option.key: option.name for option in reversed(self.options) if _takes_path(option)}
        folder = f"{_LIGHTNING_LOGS}/" if _LIGHTNING_LOGS in self.folders else ""
        return next((by_key[key] for key in _OUTPUTS if key in by_key), folder)


_OUTPUTS = (
    "output_dir", "out_dir", "outdir", "outputdir", "output_folder", "output_path", "save_dir", "save_folder",
    "results_dir", "result_dir", "run_dir", "exp_dir", "experiment_dir", "work_dir", "workdir", "model_dir",
    "save_model_dir", "checkpoint_dir", "ckpt_dir", "default_root_dir", "log_dir", "logdir", "dir", "out", "output",
    "outf", "save_path", "checkpoint_path", "save",
)  # fmt: skip


def _takes_path(option: ScriptOption) -> bool:
    return option.type in ("", "str") and not option.is_switch and (option.key != "dir" or option.name == RUN_DIR)


def read_script(script: str, *, shown: str, folder: str, reserved: Collection[str] = ()) -> TrainingScript:
    """Find the options of a script, which is called `shown` in messages.

    `folder` is where it will run; modules are looked for there and beside the script. A parameter never gets one of the
    `reserved` names.

    Raises `LocalFile` or `NoPermission` if the script can't be read or parsed.
    """
    modules = read_modules(script, shown=shown, roots=[folder, os.path.join(folder, "src")])
    readers = (OptionReader(module, modules, os.path.dirname(script), frozenset(reserved)) for module in modules)
    nothing: tuple[str, FoundOptions] = ("", ([], ()))
    style, (found, words) = next((one for one in map(OptionReader.read, readers) if one[0]), nothing)
    options = {option.name: option for option in reversed(found[:MOST_OPTIONS])}
    return TrainingScript(
        style=style,
        options=tuple(reversed(options.values())),
        words=words,
        metrics=printed_metrics(modules),
        folders=tuple(dict.fromkeys(_folders(modules[0]))),
        uses_device=any(
            not _DEVICE_NAMES.isdisjoint(module.names) or module.is_importing(*_ON_ANY_DEVICE) for module in modules
        ),
    )


def _folders(module: ModuleSyntax) -> Iterator[str]:
    if module.is_importing(*_LIGHTNING) and not {"Trainer", "LightningCLI"}.isdisjoint(module.names):
        yield _LIGHTNING_LOGS
    for call in module.calls:
        name = called(call.func)
        made = call.args[0] if call.args else None
        if name == "mkdir" and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
            # As in Path("runs").mkdir().
            made = call.func.value.args[0] if call.func.value.args else None
        elif name not in ("os.makedirs", "os.mkdir", "makedirs"):
            continue
        text = module.value(made)
        if isinstance(text, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", text, re.ASCII) and ".." not in text:
            yield os.path.normpath(text)


# Metrics: the texts of a script's output, with numbers in their places, read as the program's output is.

_PERCENT = re.compile(r"%[-+ #0-9.*]*[a-zA-Z]")
_FIELD = re.compile(r"\{[^{}]*\}")
_LOGGING = frozenset({"info", "warning", "print", "write", "set_description", "log_metric"})
_TRAINERS = frozenset({"Trainer", "Seq2SeqTrainer", "SFTTrainer"})
_WHOLE, _DECIMAL = "3", "0.5"


def printed_metrics(modules: Iterable[ModuleSyntax]) -> tuple[str, ...]:
    """Return the metrics that a script seems to print, the likeliest to rank by first."""
    found: dict[str, None] = {}
    for module in modules:
        for call in module.calls:
            # A number without a format may be either.
            for line in (*_printed_lines(call, _WHOLE), *_printed_lines(call, _DECIMAL)):
                values = PrintedMetrics().read(line[:_LONGEST_TEXT].encode(errors="replace")).values
                found.update(dict.fromkeys(name for name in values if any(map(is_measure, words_of(name)))))
        if module.is_importing("transformers", "trl") and not _TRAINERS.isdisjoint(module.names):
            # What the library itself prints: {'loss': 2.3, …}, {'eval_loss': 2.1, …}
            found.update(dict.fromkeys(["loss", normal_name("eval_loss")]))
        if module.is_importing("keras", "tensorflow"):
            fits = [call for call in module.calls if called(call.func).endswith(".fit")]
            keywords = {keyword.arg for call in fits for keyword in call.keywords}
            found.update(dict.fromkeys(["loss"] if fits else []))
            found.update(dict.fromkeys(["val_loss"] if {"validation_data", "validation_split"} & keywords else []))
    return tuple(sorted(found, key=preference))


def _printed_lines(call: ast.Call, number: str) -> list[str]:
    """Return what a call may print; `number` is any number without a format."""
    name = called(call.func).rpartition(".")[2]
    if name == "set_postfix":
        return [" ".join(f"{keyword.arg}={number}" for keyword in call.keywords if keyword.arg)]
    if name == "log" and len(call.args) > 1:
        # Lightning's self.log("val_loss", …): in its progress bar or its logs.
        return [f"{_shown(call.args[0], number)}={number}"]
    if name not in _LOGGING:
        return []
    texts = [_shown(one, number) for one in call.args]
    if len(texts) > 1 and "%" in texts[0]:
        texts = [_with_numbers(_PERCENT, texts[0], number)]
    return " ".join(texts).splitlines()


def _shown(node: ast.expr, number: str, depth: int = 0) -> str:
    """Return an expression as it may be printed: texts as they are, anything else as a number."""
    shown = number
    if depth > _MOST_NESTED:
        return shown
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        shown = node.value
    elif isinstance(node, ast.JoinedStr):
        shown = "".join(_shown(part, number, depth + 1) for part in node.values)
    elif isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
        shown = _as_formatted(_shown(node.format_spec, number, depth + 1), number)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        shown = _shown(node.left, number, depth + 1) + _shown(node.right, number, depth + 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        shown = _with_numbers(_PERCENT, _shown(node.left, number, depth + 1), number)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        shown = _with_numbers(_FIELD, _shown(node.func.value, number, depth + 1), number)
    return shown


def _with_numbers(place: re.Pattern[str], text: str, number: str) -> str:
    return place.sub(lambda match: _as_formatted(match[0].rstrip("}"), number), text)


def _as_formatted(spec: str, number: str) -> str:
    if spec.endswith(("d", "i", ",", ".0f")):
        return _WHOLE
    return _DECIMAL if spec.endswith(("f", "e", "g", "%")) else number
