"""The options of a training script, found without running it: every way to declare them, and hostile files."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import LocalFile, NoPermission, StokerError
from stoker.jobs.script_options import ScriptOption
from stoker.jobs.script_syntax import LARGEST_BYTES
from stoker.jobs.starter_manifest import suggested_sweep, suggested_values
from stoker.jobs.training_script import TrainingScript, read_script

RESERVED = ("data", "out", "sample")


def read(folder: Path, text: str | bytes, name: str = "train.py") -> TrainingScript:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    return read_script(str(path), shown=name, folder=str(folder), reserved=RESERVED)


def summary(script: TrainingScript) -> dict[str, tuple[str, Any]]:
    return {option.name: (" ".join(option.words), option.default) for option in script.options}


def test_argparse_options_have_their_type_default_choices_and_help(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        import argparse
        RATE = 3 * 1e-3
        parser = argparse.ArgumentParser()
        parser.add_argument("data", help="folder")
        parser.add_argument("-b", "--batch-size", type=int, default=2**6, help="rows\\nof a step")
        parser.add_argument("--lr", "--learning-rate", dest="lr", type=float, default=RATE)
        parser.add_argument("--opt", choices=["sgd", "adam"], default="adam")
        parser.add_argument("--amp", action="store_true")
        parser.add_argument("--wd", type=float, default=-0.5)
        parser.add_argument("--bool", action=argparse.BooleanOptionalAction)
        parser.add_argument("--run-id", required=True)
        parser.add_argument("--when", default=now())
        parser.add_argument("--version", action="version", version="1")
        group = parser.add_argument_group("more")
        group.add_argument("--depth", default=3)
        """,
    )
    assert found.style == "argparse"
    assert summary(found) == {
        # A setting of Stoker's own has that name.
        "data_": ("{data_}", None),
        "batch_size": ("--batch-size {batch_size}", 64),
        "lr": ("--learning-rate {lr}", 0.003),
        "opt": ("--opt {opt}", "adam"),
        "amp": ("--amp", None),
        "wd": ("--wd {wd}", -0.5),
        "bool": ("--bool", None),
        "run_id": ("--run-id {run_id}", None),
        "when": ("--when {when}", None),
        "depth": ("--depth {depth}", 3),
    }
    options = {option.name: option for option in found.options}
    assert options["opt"].choices == ("sgd", "adam")
    assert options["batch_size"].help == "rows of a step"
    assert (options["batch_size"].type, options["lr"].type, options["depth"].type) == ("int", "float", "int")
    assert [name for name, option in options.items() if option.is_required] == ["data_", "run_id"]
    assert [name for name, option in options.items() if option.is_switch] == ["amp", "bool"]


def test_of_several_commands_the_one_that_trains_is_taken(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--seed", type=int, default=0)
        commands = parser.add_subparsers()
        test = commands.add_parser("test")
        test.add_argument("--image")
        train = commands.add_parser("train")
        train.add_argument_group("optimiser").add_argument("--lr", type=float, default=0.1)
        """,
    )
    assert found.words == ("train",)
    assert list(summary(found)) == ["seed", "lr"]


def test_click_options_and_arguments(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        import click

        @click.command()
        @click.option("--lr", "rate", default=1e-3, type=float, help="learning rate")
        @click.option("--shuffle/--no-shuffle", default=True)
        @click.option("--fast", is_flag=True)
        @click.option("--model", type=click.Choice(["a", "b"]), required=True)
        @click.argument("corpus")
        def main(rate, shuffle, fast, model, corpus): ...
        """,
    )
    assert found.style == "click"
    assert found.words == ()
    assert summary(found) == {
        "rate": ("--lr {rate}", 0.001),
        "shuffle": ("--shuffle", True),
        "fast": ("--fast", None),
        "model": ("--model {model}", None),
        "corpus": ("{corpus}", None),
    }
    assert found.options[3].choices == ("a", "b")
    assert [option.name for option in found.options if option.is_required] == ["model", "corpus"]


def test_a_command_of_a_click_group_is_named(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        import click

        @click.group()
        def cli(): ...

        @cli.command("eval-all")
        @click.option("--lr")
        def evaluate(lr): ...

        @cli.command()
        @click.option("--depth", default=3)
        def train(depth): ...
        """,
    )
    assert (found.words, list(summary(found))) == (("train",), ["depth"])


def test_typer_parameters(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        from typing import Annotated, Optional
        import typer
        app = typer.Typer()

        @app.command()
        def main(
            ctx: typer.Context,
            corpus: str,
            base_lr: float = 1e-3,
            depth: Annotated[int, typer.Option("--depth", "-d", help="layers")] = 4,
            width: Optional[int] = typer.Option(64, help="units"),
            amp: bool = False,
            name: str = typer.Option(...),
        ): ...
        """,
    )
    assert found.style == "typer"
    assert summary(found) == {
        "corpus": ("{corpus}", None),
        "base_lr": ("--base-lr {base_lr}", 0.001),
        "depth": ("--depth {depth}", 4),
        "width": ("--width {width}", 64),
        "amp": ("--amp", False),
        "name": ("--name {name}", None),
    }
    assert [option.name for option in found.options if option.is_required] == ["corpus", "name"]
    assert [option.type for option in found.options][:4] == ["str", "float", "int", "int"]


def test_hydra_keys_are_those_of_its_file_and_of_the_chosen_groups(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text(
        "defaults:\n  - _self_\n  - model: small\n  - optional: ../../secret\n"
        "optim: {lr: 1e-3, name: adam}\nseed: 1\nroot: ???\nrun: ${seed}\nlayers: [1, 2]\nhydra: {job: {chdir: true}}\n"
    )
    (tmp_path / "conf" / "model" / "small.yaml").write_text("depth: 3\n")
    found = read(
        tmp_path,
        """
        import hydra

        @hydra.main(version_base=None, config_path="conf", config_name="config")
        def main(cfg): ...
        """,
    )
    assert found.style == "hydra"
    assert summary(found) == {
        "model.depth": ("model.depth={model.depth}", 3),
        "optim.lr": ("optim.lr={optim.lr}", 0.001),
        "optim.name": ("optim.name={optim.name}", "adam"),
        "seed": ("seed={seed}", 1),
        "root": ("root={root}", None),
        "run": ("run={run}", None),
        "hydra.run.dir": ("hydra.run.dir={hydra.run.dir}", None),
    }
    assert [option.name for option in found.options if option.is_required] == ["root"]
    option = found.find(found.output)
    assert option is not None
    assert option.filled("{out}") == ("hydra.run.dir={out}",)


def test_a_stored_class_is_a_hydra_configuration_as_well(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        from dataclasses import dataclass, field
        import hydra
        from hydra.core.config_store import ConfigStore

        @dataclass
        class Optim:
            lr: float = 0.1

        @dataclass
        class Config:
            optim: Optim = field(default_factory=Optim)
            seed: int = 0

        ConfigStore.instance().store(name="config", node=Config)

        @hydra.main(config_name="config")
        def main(cfg): ...
        """,
    )
    assert list(summary(found)) == ["optim.lr", "seed", "hydra.run.dir"]


def test_absl_flags(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        from absl import app, flags
        flags.DEFINE_float("lr", 1e-2, "learning rate")
        flags.DEFINE_integer("seed", 0, "seed")
        flags.DEFINE_enum("opt", "sgd", ["sgd", "adam"], "optimiser")
        flags.DEFINE_bool("amp", False, "mixed precision")
        flags.DEFINE_string("corpus", None, "text")
        flags.mark_flags_as_required(["corpus"])
        """,
    )
    assert found.style == "absl"
    assert summary(found)["lr"] == ("--lr={lr}", 0.01)
    assert [option.type for option in found.options] == ["float", "int", "str", "bool", "str"]
    assert found.options[2].choices == ("sgd", "adam")
    assert found.options[2].help == "optimiser"
    assert [option.name for option in found.options if option.is_required] == ["corpus"]


def test_hugging_face_dataclasses_with_those_of_the_library(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        from dataclasses import dataclass, field
        from transformers import HfArgumentParser, Trainer, TrainingArguments

        @dataclass
        class ModelArguments:
            model_name: str = field(metadata={"help": "which " "model"})
            rank: int | None = field(default=8)

        @dataclass
        class OurArguments(TrainingArguments):
            gamma: float = 0.5

        parser = HfArgumentParser((ModelArguments, OurArguments))
        model, args = parser.parse_args_into_dataclasses()
        if args.do_train:
            Trainer().train()
        """,
    )
    assert found.style == "HfArgumentParser"
    assert found.words == ("--do_train",)
    assert summary(found)["learning_rate"] == ("--learning_rate {learning_rate}", 5e-5)
    assert {"model_name", "rank", "output_dir", "gamma", "seed"} <= set(summary(found))
    assert found.options[0].help == "which model"
    assert [option.name for option in found.options if option.is_required] == ["model_name"]
    assert found.metrics == ("val_loss", "loss")
    assert found.uses_device


def test_tyro_and_fire(tmp_path: Path) -> None:
    tyro = read(
        tmp_path,
        """
        import tyro
        from dataclasses import dataclass

        @dataclass
        class Args:
            learning_rate: float = 2.5e-4
            env_id: str = "CartPole-v1"

        args = tyro.cli(Args)
        """,
    )
    assert (tyro.style, list(summary(tyro))) == ("tyro", ["learning_rate", "env_id"])
    fire = read(
        tmp_path,
        """
        import fire

        def train(corpus, lr: float = 1e-3, *, seed=0): ...

        fire.Fire(train)
        """,
    )
    assert fire.style == "fire"
    assert summary(fire) == {
        "corpus": ("--corpus={corpus}", None),
        "lr": ("--lr={lr}", 0.001),
        "seed": ("--seed={seed}", 0),
    }
    named = read(tmp_path, "import fire\ndef prepare(x=1): ...\ndef train(lr=1): ...\nfire.Fire()\n")
    assert (named.words, list(summary(named))) == (("train",), ["lr"])


def test_constants_that_a_configurator_overrides(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        import torch
        out_dir = 'out'
        learning_rate = 6e-4
        steps = 5 * 8
        dtype = 'bfloat16' if torch.cuda.is_available() else 'float16'
        _hidden = 1
        exec(open('configurator.py').read())
        later = 3
        print(f"step {steps}: train loss {a:.4f}, val loss {b:.4f}")
        """,
    )
    assert found.style == "configurator"
    assert summary(found) == {
        "out_dir": ("--out_dir={out_dir}", "out"),
        "learning_rate": ("--learning_rate={learning_rate}", 6e-4),
        "steps": ("--steps={steps}", 40),
    }
    assert found.metrics == ("val_loss", "train_loss")
    assert found.output == "out_dir"
    assert suggested_sweep(found.options) == {"learning_rate": (0.0002, 0.0006, 0.002)}


def test_words_that_a_script_looks_for_itself(tmp_path: Path) -> None:
    found = read(tmp_path, 'import sys\nlr = float(sys.argv[sys.argv.index("--lr") + 1])\n')
    assert (found.style, summary(found)) == ("sys.argv", {"lr": ("--lr {lr}", None)})


def test_options_and_prints_of_modules_beside_the_script_count(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "options.py").write_text(
        "import argparse\n"
        "def parse():\n    p = argparse.ArgumentParser()\n    p.add_argument('--lr', default=0.1)\n"
        "if __name__ == '__main__':\n    p.add_argument('--only-here')\n"
    )
    (tmp_path / "loop.py").write_text("def epoch():\n    print('val acc: %.2f' % 1)\n")
    found = read(tmp_path, "from lib.options import parse\nimport loop\nargs = parse()\n")
    assert list(summary(found)) == ["lr"]
    assert found.metrics == ("val_acc",)


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        ('print("loss", loss)', ("loss",)),
        ("print(f'epoch {e} | val accuracy {a:.3f} | lr {lr}')", ("val_accuracy",)),
        (
            "print('Test set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)'.format(1, 2, 3, 4))",
            ("test_accuracy", "test_avg_loss"),
        ),
        ("logger.info('step %d: ppl %f', 3, p)", ("ppl",)),
        ("bar.set_postfix(loss=l)", ("loss",)),
        ("self.log('val_loss', l, prog_bar=True)", ("val_loss",)),
        ("import keras\nmodel.fit(x, y, validation_split=0.1)", ("val_loss", "loss")),
        ("import keras\nmodel.fit(x, y)", ("loss",)),
        ("print('listening on port', port, 'with', 3, 'workers')", ()),
    ],
)
def test_metrics_are_guessed_from_what_is_printed(tmp_path: Path, text: str, metrics: tuple[str, ...]) -> None:
    assert read(tmp_path, text).metrics == metrics


def test_folders_with_a_fixed_name_are_found(tmp_path: Path) -> None:
    text = """
        import os
        from pathlib import Path
        os.makedirs("runs/a", exist_ok=True)
        Path("checkpoints").mkdir()
        os.makedirs("/etc/x"); os.makedirs("../up"); os.makedirs(where)
    """
    assert read(tmp_path, text).folders == ("runs/a", "checkpoints")
    found = read(tmp_path, "import lightning as L\nL.Trainer(max_epochs=1).fit(model)")
    assert (found.folders, found.output, found.uses_device) == (("lightning_logs",), "lightning_logs/", True)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (ScriptOption(name="lr", words=("--lr", "{lr}"), type="float", default=1), (0.3, 1.0, 3.0)),
        (ScriptOption(name="optim.lr", words=("{}",)), (1e-4, 3e-4, 1e-3)),
        (ScriptOption(name="seed", words=("{}",), default=7), (7, 8)),
        (ScriptOption(name="seed", words=("{}",), default=-1), (0, 1)),
        (ScriptOption(name="batch_size", words=("{}",), type="int", default=32), (16, 32, 64)),
        (ScriptOption(name="n", words=("{}",), type="int", default=1), (1, 2)),
        (ScriptOption(name="momentum", words=("{}",), type="float", default=0.9), (0.45, 0.9, 0.95)),
        (ScriptOption(name="opt", words=("{}",), choices=("a", "b")), ("a", "b")),
        (ScriptOption(name="amp", words=("--amp",), type="bool"), ()),
        (ScriptOption(name="flag", words=("{}",), default=True), ()),
        (ScriptOption(name="name", words=("{}",), default="x"), ()),
    ],
)
def test_suggested_values_lie_around_the_default(option: ScriptOption, values: tuple[Any, ...]) -> None:
    assert suggested_values(option) == values


# Hostile files.


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"def f(:\n", "line 1"),
        (b"print 'python 2'\n", "line 1"),
        (b"\x7fELF\x00\x01\xff\xfe", "can't be parsed"),
        (b"x = '\xff'\n", "can't be parsed"),
        (b"# coding: no-such-codec\n", "can't be parsed"),
        (b"(" * 5000, "can't be parsed"),
        (b"-" * 200_000 + b"1", "can't be parsed"),
        (b"x = " + b"9" * 10_000, "can't be parsed"),
        (b"a" * (LARGEST_BYTES + 1), "larger than 1 MiB"),
    ],
    ids=["syntax", "python 2", "binary", "encoding", "codec", "brackets", "signs", "digits", "large"],
)
def test_a_file_that_is_no_script_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(LocalFile, match=message):
        read(tmp_path, data)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    with path.open("wb") as file:
        file.truncate(50_000_000_000)
    with pytest.raises(LocalFile, match="larger than 1 MiB"):
        read_script(str(path), shown="train.py", folder=str(tmp_path))


def test_links_in_a_circle_pipes_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    loop, pipe, closed = tmp_path / "loop.py", tmp_path / "pipe.py", tmp_path / "closed.py"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    closed.write_text("x = 1\n")
    closed.chmod(0)
    with pytest.raises(LocalFile):
        read_script(str(loop), shown="loop.py", folder=str(tmp_path))
    with pytest.raises(LocalFile, match="not a regular file"):
        read_script(str(pipe), shown="pipe.py", folder=str(tmp_path))
    if os.geteuid():
        with pytest.raises(NoPermission):
            read_script(str(closed), shown="closed.py", folder=str(tmp_path))
    linked = tmp_path / "linked.py"
    (tmp_path / "real.py").write_text("import sys\nsys.argv.index('--lr')\n")
    linked.symlink_to("real.py")
    assert read_script(str(linked), shown="linked.py", folder=str(tmp_path)).style == "sys.argv"


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "a" + ".b" * 3000,
        "x = " + " + ".join(["1"] * 3000),
        "print(" + " + ".join(["'loss %f'"] * 3000) + ")",
        "if x:\n  pass\n" + "elif x:\n  pass\n" * 2000,
        "x = 9**9**9**9\np.add_argument('--n', default=9**9**9)",
        "p.add_argument('--n', default='x' * 10**12)",
        "p.add_argument('--lr\\n[[jobs]]', help='\\x1b[31m\\n')\np.add_argument(*names, **more)\np.add_argument()",
        "class A(A):\n  x: int\nHfArgumentParser(A)",
        "class A(B):\n  x: int\nclass B(A):\n  y: int\nHfArgumentParser(A)",
        "import tyro\nclass A:\n  a: 'A'\ntyro.cli(A)",
        "import train\nimport other\n",
        "import hydra\n@hydra.main(config_path='../../../etc', config_name='passwd')\ndef f(): ...",
    ],
)
def test_a_strange_script_is_read_or_refused_and_never_hangs(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.py").symlink_to("other.py")
    try:
        found = read(tmp_path, text)
    except StokerError:
        return
    assert all(option.name.isidentifier() and option.help.isprintable() for option in found.options)


def test_many_options_and_many_modules_are_bounded(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"m{number}.py").write_text(f"import m{number + 1}\n")
    script = "import m0\n" + "".join(f"p.add_argument('--a{number}')\n" for number in range(2000))
    assert len(read(tmp_path, script).options) == 500


def test_a_pipe_in_the_place_of_a_configuration_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    found = read(tmp_path, "import hydra\n@hydra.main(config_path='.', config_name='config')\ndef f(cfg): ...\n")
    assert found.style == ""
