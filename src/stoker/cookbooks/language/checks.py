"""Checks of a recipe's arguments before anything runs, all faults at once; and the values that they mean."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from stoker.authoring import Diagnostic, InvalidArgs
from stoker.cookbooks.language.arguments import DEFAULT_TOKENS, MERGE
from stoker.cookbooks.language.base_search import find_base, lacking
from stoker.cookbooks.language.bases import Outline, TrainableBase
from stoker.cookbooks.language.bundled import BASES, DATA
from stoker.cookbooks.language.peft import CONFIG, adapter_header, modules_of, read_config
from stoker.core.errors import Damaged, MissingRepoFiles, StokerError
from stoker.core.text import did_you_mean
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.devices.estimate.training_setup import ALL_LINEAR, ATTENTION, MLP, names_of, targeted
from stoker.engine.recipe import surroundings

_GROUPS = (ALL_LINEAR, ATTENTION, MLP)
_MODULE = re.compile(r"model\.layers\.(?P<layer>0|[1-9]\d{0,5})\.(self_attn|mlp)\.(?P<name>\w+)", re.ASCII)


class LanguageArgsChecker:
    """Collects the faults of one recipe's arguments."""

    def __init__(self, recipe: str) -> None:
        self._recipe = recipe
        self._faults: list[Diagnostic] = []
        self._lacking: dict[Diagnostic, MissingRepoFiles] = {}
        """Faults that a download may fix, each with the files to download."""
        self._damaged = 0
        """Number of faults that are damaged files."""
        self._judges = "base" not in surroundings().stand_ins
        """True if the base is valid, so that other arguments can be checked against it."""

    def note(self, name: str, message: str, hint: str = "") -> None:
        """Add a fault of an argument."""
        self._faults.append(Diagnostic(f"{self._recipe}.{name}", message, hint))

    def refuse(self) -> None:
        """Raise `InvalidArgs` with all faults, if any; `Damaged` if the only ones are damaged files."""
        faults = tuple(self._faults)
        if not faults:
            return
        if len(faults) > len(self._lacking) > 0 and surroundings().fetches():
            faults = tuple(one for one in faults if one not in self._lacking)
        if len(faults) == self._damaged == 1:
            only = faults[0]
            raise Damaged(f"{only.where}: {only.message}", hint=only.hint, where=only.where, why=only.message)
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the arguments of {self._recipe}"
        lacks = tuple(self._lacking.values()) if len(self._lacking) == len(self._faults) else ()
        raise InvalidArgs(message, faults=faults, hint=f"stoker recipes show {self._recipe}", lacks=lacks)

    def base(self, text: str) -> TrainableBase | None:
        """Find a base; faults are collected."""
        if not text.strip():
            self.note("base", "is empty", f"a folder, org/name of the hub, or {', '.join(BASES)}")
            return None
        try:
            return find_base(text, use="merged" if self._recipe == MERGE else "trained")
        except Damaged as error:
            self._note_damage("base", error)
        except StokerError as error:
            self.note("base", error.message, error.hint)
            lack = lacking(text, "base")
            if lack is not None:
                self._lacking[self._faults[-1]] = lack
        return None

    def _note_damage(self, name: str, error: Damaged) -> None:
        self._damaged += 1
        self.note(name, error.message, error.hint)

    def data(self, text: str) -> Path | None:
        """Return the data: bundled, or a file; faults are collected."""
        if text in DATA:
            return None
        if not text.strip():
            self.note("data", "is empty", f"a JSONL file, or one that is bundled: {', '.join(DATA)}")
            return None
        path = Path(os.path.expanduser(text))
        if path.is_dir():
            self.note("data", f"{text} is a folder", "use one file of examples")
        elif not path.is_file():
            bundled = f"bundled data is {', '.join(DATA)}"
            is_path = path.suffix or path.parent != Path()
            message = f"file not found: {text}" if is_path else f"{text!r} is neither a file nor bundled data"
            self.note("data", message, bundled if is_path else did_you_mean(text, DATA) or bundled)
        elif path.stat().st_size == 0:
            self.note("data", f"{text} is empty", 'one JSON object per line, such as {"text": "…"}')
        return path

    def length(self, wanted: int | None, base: TrainableBase | Outline) -> int:
        """Return the longest row; a length beyond the base's maximum is a fault."""
        if wanted is None:
            return min(DEFAULT_TOKENS, base.positions)
        if wanted > base.positions and self._judges:
            message = f"{wanted:,} tokens, but {base.name} reads {base.positions:,} at most"
            self.note("max_seq_len", message, f"max_seq_len={base.positions}, or leave it out")
        return wanted

    def targets(self, wanted: tuple[str, ...], shape: ModelShape, rank: int) -> tuple[str, ...]:
        """Return the names of the target matrices, in a block's order; a name that matches nothing is a fault."""
        real = names_of(shape)
        if not self._judges:
            return tuple(real)
        known = [*_GROUPS, *real]
        if not wanted:
            self.note("targets", "no target matrices", f"one of {', '.join(known)}")
        for one in wanted:
            if one not in known:
                hint = did_you_mean(one, known) or f"its matrices are {', '.join(real)}; or {', '.join(_GROUPS)}"
                self.note("targets", f"no matrix {one!r} in this {shape.family} model", hint)
        meant = targeted(shape, wanted)
        smallest = min(meant, key=lambda one: min(one.inputs, one.outputs), default=None)
        if smallest is not None and rank > min(smallest.inputs, smallest.outputs):
            most = min(smallest.inputs, smallest.outputs)
            size = f"{smallest.outputs:,} × {smallest.inputs:,}"
            self.note("rank", f"{rank:,} is larger than {smallest.name}, which is {size}", f"rank={most} at most")
        return tuple(dict.fromkeys(one.name for one in meant))

    def adapter(self, text: str, base: TrainableBase | None) -> Path:
        """Check an adapter's folder; its faults, and what does not fit the base, are collected."""
        folder = Path(os.path.expanduser(text))
        if not text.strip() or not folder.is_dir():
            hint = "a folder with adapter_config.json and adapter_model.safetensors, such as stoker-out/lora"
            self.note("adapter", f"folder not found: {text}" if text.strip() else "is empty", hint)
            return folder
        try:
            rank = read_config(folder)["r"]
            header = adapter_header(folder)
            modules = modules_of(folder, header.tensors)
        except Damaged as error:
            self._note_damage("adapter", error)
            return folder
        except StokerError as error:
            within = folder / "best"
            hint = f"adapter={text.rstrip('/')}/best is one" if (within / CONFIG).is_file() else error.hint
            self.note("adapter", error.message, hint)
            return folder
        if base is not None and self._judges:
            self._fit(modules, {name: one.shape for name, one in header.tensors.items()}, rank, base)
        return folder

    def _fit(
        self, modules: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]], rank: int, base: TrainableBase
    ) -> None:
        """Add a fault for the first target matrix of an adapter that the base lacks, or has in another size."""
        sizes = {one.name: (one.inputs, one.outputs) for one in base.shape.linears}
        for module in modules:
            match = _MODULE.fullmatch(module)
            size = sizes.get(match["name"]) if match and int(match["layer"]) < base.shape.layers else None
            if size is None:
                self.note(
                    "adapter", f"target matrix {module} is not in {base.name}", "use the base that it was trained on"
                )
                return
            inputs, outputs = size
            found = [shapes[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB"]
            if found != [(rank, inputs), (outputs, rank)]:
                shown = " and ".join("×".join(map(str, one)) for one in found)
                message = (
                    f"its matrices for {module} are {shown}; {base.name} requires {rank}×{inputs} and {outputs}×{rank}"
                )
                self.note("adapter", message, "use the base that it was trained on")
                return
