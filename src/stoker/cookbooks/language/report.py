"""The stages that write reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.authoring import StageContext, stage
from stoker.cookbooks.language.kinds import Adapter, LanguageModel, LanguageReport, Samples
from stoker.cookbooks.language.schemas import CompletionSample

_USES = ("matplotlib",)


@stage("language/report_lora", version=1, uses=_USES)
def report_lora(job: StageContext, adapter: Adapter) -> LanguageReport:
    """Write a summary, curves and a model card, and put the adapter beside them."""
    adapter.copy_files(job.out)
    return _written(job, adapter.path, ())


@stage("language/report_lora_samples", version=1, uses=_USES)
def report_lora_samples(job: StageContext, adapter: Adapter, samples: Samples) -> LanguageReport:
    """Write a summary, curves, samples and a model card, and put the adapter beside them."""
    adapter.copy_files(job.out)
    return _written(job, adapter.path, samples.load())


@stage("language/report_full", version=1, uses=_USES)
def report_full(job: StageContext, model: LanguageModel) -> LanguageReport:
    """Write a summary, curves and a model card."""
    return _written(job, model.path, ())


@stage("language/report_full_samples", version=1, uses=_USES)
def report_full_samples(job: StageContext, model: LanguageModel, samples: Samples) -> LanguageReport:
    """Write a summary, curves, samples and a model card."""
    return _written(job, model.path, samples.load())


def _written(job: StageContext, made: Path, samples: Sequence[CompletionSample]) -> LanguageReport:
    from stoker.cookbooks.language.report_card import all_plots, curve_csv, model_card, samples_text, summary
    from stoker.cookbooks.language.schemas import TRAINING, read_training, write_training
    from stoker.cookbooks.report_parts import write_plots, write_texts

    training = read_training(made)
    if not (job.out / TRAINING).exists():
        write_training(training, job.out)
    write_plots(job.out, all_plots(training))
    texts = {
        "curve.csv": curve_csv(training),
        "model-card.md": model_card(training, samples),
        "summary.json": summary(training),
    }
    if samples:
        texts["samples.md"] = samples_text(samples)
    write_texts(job.out, texts)
    return job.made(LanguageReport)
