"""What every training of this cookbook asks: declared once, for stages and recipes alike."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import arg


# Without slots: recipes take it in beside what they ask about the data, and two bases with slots don't go together.
@dataclass(frozen=True, kw_only=True)
class TrainingArgs:
    """How to train a network."""

    epochs: int = arg(20, help="most epochs; the best one is kept", ge=1, le=100_000)
    lr: float = arg(3e-3, help="learning rate (AdamW)", gt=0)
    weight_decay: float = arg(1e-2, help="how strongly weights are pulled to zero", ge=0)
    batch: int = arg(64, help="windows per step, over all ranks together", ge=1)
    patience: int = arg(5, help="epochs without improvement before stopping", ge=1)
    clip: float = arg(1.0, help="longest gradient; a longer one is shortened", gt=0)
    seed: int = arg(0, help="decides every random choice", ge=0, le=1_000_000_000)
    ranks: int = arg(1, help="processes that train together, each on its share of every batch", ge=1, le=1024)
    n_jobs: int | None = arg(None, help="most threads per rank; null: one", ge=1, runtime=True)
    checkpoint_every: int = arg(1, help="epochs between checkpoints", ge=1, runtime=True)
