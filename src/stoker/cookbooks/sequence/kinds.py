"""The artifacts of this cookbook. Libraries are imported with the first value read or written."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stoker.authoring import JsonKind, Kind, TreeKind, check_files, check_json

if TYPE_CHECKING:
    from stoker.cookbooks.sequence import arrays
    from stoker.cookbooks.sequence.networks import FittedEncoder, FittedNetwork


class Series(Kind["arrays.SeriesArrays"]):
    """Channels over time and the target: arrays and `series.json`."""

    name: ClassVar[str] = "sequence/series"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = None

    @classmethod
    def save(cls, value: arrays.SeriesArrays, path: Path) -> None:
        from stoker.cookbooks.sequence.arrays import write_series

        write_series(value, path)

    def load(self) -> arrays.SeriesArrays:
        from stoker.cookbooks.sequence.arrays import read_series

        return read_series(self.path)

    @classmethod
    def validate(cls, path: Path) -> None:
        check_files(path, "signals.npy", "answers.npy")
        check_json(path / "series.json", "channels")


class Windows(Kind["arrays.WindowArrays"]):
    """A series divided in time, scaled by its training part, with the starts of windows: arrays and `windows.json`."""

    name: ClassVar[str] = "sequence/windows"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = None

    @classmethod
    def save(cls, value: arrays.WindowArrays, path: Path) -> None:
        from stoker.cookbooks.sequence.arrays import write_windows

        write_windows(value, path)

    def load(self) -> arrays.WindowArrays:
        from stoker.cookbooks.sequence.arrays import read_windows

        return read_windows(self.path)

    @classmethod
    def validate(cls, path: Path) -> None:
        check_files(path, "signals.npy", "answers.npy", "train.npy", "validation.npy", "test.npy")
        check_json(path / "windows.json", "window")


class Encoder(Kind["FittedEncoder"]):
    """A transformer pre-trained without targets: weights (`encoder.pt`) and facts (`encoder.json`)."""

    name: ClassVar[str] = "sequence/encoder"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = None

    @classmethod
    def save(cls, value: FittedEncoder, path: Path) -> None:
        from stoker.cookbooks.sequence.networks import write_encoder

        write_encoder(value, path)

    def load(self) -> FittedEncoder:
        from stoker.cookbooks.sequence.networks import read_encoder

        return read_encoder(self.path)

    @classmethod
    def validate(cls, path: Path) -> None:
        check_files(path, "encoder.pt")
        check_json(path / "encoder.json", "shape")


class SequenceModel(Kind["FittedNetwork"]):
    """A trained network: weights (`model.pt`, numbers and names only, no code) and facts (`model.json`)."""

    name: ClassVar[str] = "sequence/model"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = None

    @classmethod
    def save(cls, value: FittedNetwork, path: Path) -> None:
        from stoker.cookbooks.sequence.networks import write_model

        write_model(value, path)

    def load(self) -> FittedNetwork:
        # By computed name: otherwise the code identity of one family's training would include all families.
        restore = import_module(f"{__package__}.restore")
        model: FittedNetwork = restore.read_model(self.path)
        return model

    def copy_files(self, to: Path) -> None:
        """Copy weights and facts without reading them."""
        for name in ("model.pt", "model.json"):
            shutil.copyfile(self.path / name, to / name)

    @classmethod
    def validate(cls, path: Path) -> None:
        check_files(path, "model.pt")
        check_json(path / "model.json", "family")


class SequenceScores(JsonKind):
    """The evaluation of one model beside a baseline."""

    name: ClassVar[str] = "sequence/scores"
    version: ClassVar[int] = 1


class SequenceReport(TreeKind):
    """A report for people: scores, curves, plots, a model card, and the model itself."""

    name: ClassVar[str] = "sequence/report"
    version: ClassVar[int] = 1

    @classmethod
    def validate(cls, path: Path) -> None:
        check_json(path / "summary.json", "headline")
        check_files(path, "scores.csv", "curve.csv", "model-card.md", "model.pt", "model.json")
