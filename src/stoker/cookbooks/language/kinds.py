"""The artifacts of this cookbook. Libraries are imported with the first value read or written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stoker.authoring import JsonKind, Kind, TreeKind, check_files, check_json
from stoker.cookbooks.language.schemas import ANSWERS
from stoker.store.weight_files.gguf import read_gguf_header
from stoker.store.weight_files.safetensors import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from stoker.cookbooks.language.examples import ExampleSet

ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
"""Files that PEFT reads."""
GGUF_ADAPTER, GGUF_MODEL = "adapter.gguf", "model.gguf"
"""The files that llama.cpp reads."""


class Examples(Kind["ExampleSet"]):
    """Texts as tokens: which of them are learned, where examples start, which are held out, and facts."""

    name: ClassVar[str] = "language/examples"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = None

    @classmethod
    def save(cls, value: ExampleSet, path: Path) -> None:
        from stoker.cookbooks.language.examples import write_examples

        write_examples(value, path)

    def load(self) -> ExampleSet:
        from stoker.cookbooks.language.examples import read_examples

        return read_examples(self.path)

    @classmethod
    def validate(cls, path: Path) -> None:
        check_files(path, "tokens.npy", "trained.npy", "starts.npy", "held_out.npy")
        check_json(path / "facts.json", "examples")


class Adapter(TreeKind):
    """A LoRA adapter in PEFT's layout, and `training.json`."""

    name: ClassVar[str] = "language/adapter"
    version: ClassVar[int] = 1

    def copy_files(self, to: Path) -> None:
        """Copy the files for PEFT, and the record of the training."""
        for name in (*ADAPTER_FILES, "training.json"):
            shutil.copyfile(self.path / name, to / name)

    @classmethod
    def validate(cls, path: Path) -> None:
        check_files(path, ADAPTER_WEIGHTS)
        check_json(path / ADAPTER_CONFIG, "peft_type")
        check_json(path / "training.json", "curve")


class GgufFile(TreeKind):
    """A LoRA adapter, or a whole model, as one GGUF file."""

    name: ClassVar[str] = "language/gguf"
    version: ClassVar[int] = 1

    @classmethod
    def validate(cls, path: Path) -> None:
        is_adapter = (path / GGUF_ADAPTER).exists()
        header = read_gguf_header(path / (GGUF_ADAPTER if is_adapter else GGUF_MODEL))
        if header.values.get("general.type") != ("adapter" if is_adapter else "model"):
            raise ValueError("it is neither an adapter nor a model")


class LanguageModel(TreeKind):
    """A whole model in the Hugging Face layout: config.json, safetensors, tokenizer files."""

    name: ClassVar[str] = "language/model"
    version: ClassVar[int] = 1

    @classmethod
    def validate(cls, path: Path) -> None:
        check_json(path / "config.json", "model_type")
        if not any(path.glob("*.safetensors")):
            raise ValueError("there are no weights (*.safetensors)")


class Samples(JsonKind):
    """Prompts and their completions."""

    name: ClassVar[str] = "language/samples"
    version: ClassVar[int] = 1


class Answers(TreeKind):
    """Answers of models over one base to the same prompts."""

    name: ClassVar[str] = "language/answers"
    version: ClassVar[int] = 1

    @classmethod
    def validate(cls, path: Path) -> None:
        check_json(path / ANSWERS, "answers")


class LanguageReport(TreeKind):
    """A report for people: a summary, curves, a model card, and of an adapter the adapter itself."""

    name: ClassVar[str] = "language/report"
    version: ClassVar[int] = 1

    @classmethod
    def validate(cls, path: Path) -> None:
        check_json(path / "summary.json", "headline")
        check_json(path / "training.json", "curve")
        check_files(path, "curve.csv", "model-card.md")
