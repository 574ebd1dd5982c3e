"""A training as it is written down."""

from __future__ import annotations

from typing import Any

from stoker.cookbooks.language.schemas import BaseFacts, LanguageCurve, LanguageCurvePoint, LanguageTrainingRecord


def told(**changes: Any) -> LanguageTrainingRecord:
    points = [
        LanguageCurvePoint(step=5, epoch=0.5, loss=3.0, eval_loss=None, lr=1e-3),
        LanguageCurvePoint(step=10, epoch=1.0, loss=2.0, eval_loss=1.5, lr=5e-4),
        LanguageCurvePoint(step=20, epoch=2.0, loss=1.0, eval_loss=1.75, lr=0.0),
    ]
    made = LanguageTrainingRecord(
        method="lora",
        base=BaseFacts(name="org/some-base", family="llama", parameters=108_000),
        data={
            "examples": 1140,
            "held_out": 7,
            "tokens": 9000,
            "trained_tokens": 5000,
            "train_on": "completion",
            "forms": {"messages": 1140},
            "template": "chatml",
            "notes": ["3 lines were skipped."],
        },
        settings={"rank": 8, "alpha": 16.0, "lr": 1e-3, "targets": ["q_proj", "v_proj"]},
        weights=4096,
        curve=LanguageCurve(points=points, kept=10, before=4.0),
        device="cpu",
        dtype="float32",
        notes=["It stopped early."],
        versions={"torch": "2"},
    )
    made.update(changes)  # type: ignore[typeddict-item]  # what a test changes
    return made
