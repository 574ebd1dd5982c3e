"""The cookbook itself: what the catalogue sees of it."""

from __future__ import annotations

from typing import Final

from stoker.cookbooks.language.kinds import Adapter, Examples, Model, Report, Samples
from stoker.cookbooks.language.merge import merge_weights
from stoker.cookbooks.language.recipes import full, lora, merge
from stoker.cookbooks.language.report import report_full, report_full_samples, report_lora, report_lora_samples
from stoker.cookbooks.language.sample import sample, sample_model
from stoker.cookbooks.language.tokenise import tokenise
from stoker.cookbooks.language.train_full import train_full
from stoker.cookbooks.language.train_lora import train_lora
from stoker.plan.authoring import Cookbook

COOKBOOK: Final = Cookbook(
    name="language",
    summary="fine-tune language models, many adapters over one base at once",
    recipes=(lora, full, merge),
    stages=(
        tokenise,
        train_lora,
        train_full,
        sample,
        sample_model,
        report_lora,
        report_lora_samples,
        report_full,
        report_full_samples,
        merge_weights,
    ),
    kinds=(Examples, Adapter, Model, Samples, Report),
    prefill={recipe.name: {"base": "tiny", "data": "sums"} for recipe in (lora, full)},
    # Every adapter of a sweep gets a report of its own, and so a process that draws.
    preload=("matplotlib.backends.backend_svg", "matplotlib.figure", "numpy", "tokenizers", "torch"),
)
