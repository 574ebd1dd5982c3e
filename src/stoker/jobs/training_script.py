"""What is found in a training script without running it: its options, what it prints, where it writes.

found = read_script("…/train.py", shown="train.py", folder="…")
found.style             "argparse"
found.find("lr")        the option, with its words, type and default
found.output            the option that says where results are written
found.metrics           ("val_loss", "train_loss")
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator

from stoker.core.frozen import frozen
from stoker.jobs.script_options import MOST_OPTIONS, RUN_DIR, FoundOptions, OptionReader, ScriptOption
from stoker.jobs.script_syntax import ModuleSyntax, called, printed_metrics, read_modules

_DEVICE_NAMES = frozenset({
    "cuda", "cuda:0", "accelerator", "Accelerator", "Trainer", "Seq2SeqTrainer", "SFTTrainer", "gpu", "gpus",
})  # fmt: skip
"""Names and texts of scripts that run on a GPU if there is one."""


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
    def output(self) -> ScriptOption | None:
        """The option that says where results are written."""
        by_key = {option.key: option for option in reversed(self.options) if _takes_path(option)}
        return next((by_key[key] for key in _OUTPUTS if key in by_key), None)


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
        uses_device=any(not _DEVICE_NAMES.isdisjoint(module.names) for module in modules),
    )


def _folders(module: ModuleSyntax) -> Iterator[str]:
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
