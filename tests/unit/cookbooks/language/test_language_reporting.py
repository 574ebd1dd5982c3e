from __future__ import annotations

import csv
import io

import pytest

from stoker.cookbooks.language.kinds import Adapter, LanguageModel, LanguageReport, Samples
from stoker.cookbooks.language.report import report_full_samples, report_lora
from stoker.cookbooks.language.schemas import (
    CompletionSample,
    LanguageCurve,
    LanguageCurvePoint,
    LanguageTrainingRecord,
    write_training,
)
from stoker.core import jsontext
from tests.later import imported_later
from tests.unit.cookbooks.language.told_training import told
from tests.unit.cookbooks.language.walked_language import context

with imported_later():
    from stoker.cookbooks.language.report_card import (
        all_plots,
        curve_csv,
        headline,
        model_card,
        samples_text,
        summary,
    )


def test_the_headline_sets_the_result_beside_the_base():
    assert headline(told()) == (
        "adapter of rank 8 on org/some-base: perplexity 4.482 on 7 held-out examples (the base alone: 54.6)"
    )
    assert headline(told(method="full")).startswith("org/some-base, every weight trained: perplexity 4.482")


def test_without_an_evaluation_the_headline_says_so():
    curve = {"points": [], "kept": 20, "before": None}
    assert headline(told(curve=curve)) == "adapter of rank 8 on org/some-base: not evaluated"
    assert summary(told(curve=curve))["table"]["rows"][1] == ["held out, after 20 updates (kept)", "–", "–"]
    curve["kept"] = 1
    assert summary(told(curve=curve))["table"]["rows"][1] == ["held out, after 1 update (kept)", "–", "–"]


def test_the_curve_has_a_line_for_each_point_and_says_which_was_kept():
    rows = list(csv.DictReader(io.StringIO(curve_csv(told()))))
    assert [(row["step"], row["eval_loss"], row["is_kept"]) for row in rows] == [
        ("5", "", "false"),
        ("10", "1.5", "true"),
        ("20", "1.75", "false"),
    ]


def of_pairs() -> LanguageTrainingRecord:
    """Return a training by DPO: two points, of which the first was evaluated and kept."""
    points = [
        LanguageCurvePoint(
            step=5, epoch=0.5, loss=0.6, eval_loss=0.5, lr=1e-3,
            accuracy=0.75, margin=0.25, eval_accuracy=0.857143, eval_margin=0.5,
        ),
        LanguageCurvePoint(step=10, epoch=1.0, loss=0.4, eval_loss=None, lr=0.0, accuracy=1.0, margin=1.5),
    ]  # fmt: skip
    settings = {"rank": 8, "lr": 1e-3, "method": "dpo", "beta": 0.1}
    return told(settings=settings, curve=LanguageCurve(points=points, kept=5, before=0.693147))


def test_of_pairs_is_told_how_many_were_ranked_right(tmp_path):
    training = of_pairs()
    assert headline(training) == (
        "adapter of rank 8 on org/some-base, trained by DPO: 86 % of 7 held-out pairs ranked right, loss 0.5 "
        "(the base alone: 0.6931)"
    )
    assert summary(training)["table"] == {
        "columns": ["part", "loss", "accuracy", "margin"],
        "rows": [
            ["held out, the base alone", "0.6931", "–", "–"],
            ["held out, after 5 updates (kept)", "0.5", "86 %", "0.5"],
            ["training, after 10 updates", "0.4", "100 %", "1.5"],
        ],
    }
    assert summary(training)["next"][0].startswith("stoker run language/lora method=dpo rank=8,16 lr=0.001,0.002")
    rows = list(csv.DictReader(io.StringIO(curve_csv(training))))
    assert [(row["accuracy"], row["eval_accuracy"], row["eval_margin"]) for row in rows] == [
        ("0.75", "0.857143", "0.5"),
        ("1.0", "", ""),
    ]
    assert "perplexity" not in rows[0]
    card = model_card(training)
    assert "- 1,140 pairs, 7 of them held out" in card
    assert "perplexity" not in card
    training["curve"]["before_accuracy"], training["curve"]["before_margin"] = 0.571429, -0.25
    assert headline(training).endswith("loss 0.5 (the base alone: 57 %, loss 0.6931)")
    assert summary(training)["table"]["rows"][0] == ["held out, the base alone", "0.6931", "57 %", "-0.25"]
    curve = LanguageCurve(points=[], kept=5, before=None)
    assert headline(told(settings=training["settings"], curve=curve)).endswith("trained by DPO: not evaluated")
    assert [name for name, _, _ in all_plots(training)] == ["loss", "accuracy"]
    assert [name for name, _, _ in all_plots(told())] == ["loss"]


def test_the_card_keeps_what_a_file_calls_things_from_being_read_as_markup():
    card = model_card(told(base={"name": "<b>*mine*</b>", "family": "llama", "parameters": 1}))
    assert "<b>" not in card.partition("## Use")[0]
    assert "4,096 weights, on cpu in float32" in card
    assert "3 lines were skipped." in card
    assert "- 1,140 examples, 7 of them held out for the evaluation" in card
    assert "- lines: 1,140 conversations\n- conversations written by ChatML" in card
    assert "PeftModel.from_pretrained" in card


def test_what_to_type_for_a_base_is_never_the_bare_name_of_its_folder():
    def named(name):
        return told(base={"name": name, "family": "llama", "parameters": 1})

    assert "base=PATH/mine data=" in summary(named("mine"))["next"][0]
    assert "from_pretrained('PATH/mine')" in model_card(named("mine"))
    assert "base=org/some-base data=" in summary(told())["next"][0]
    bundled = model_card(named("tiny"))
    assert "from_pretrained" not in bundled
    assert "`stoker run language/merge base=tiny adapter=FOLDER`" in bundled


def test_samples_are_shown_as_they_are_even_if_they_hold_a_fence():
    text = samples_text([CompletionSample(prompt="```py\nx", completion="````")])
    assert "````text\n```py\nx\n````" in text
    assert "`````text\n````\n`````" in text


def test_a_report_holds_the_adapter_the_curve_a_plot_and_a_card(tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    write_training(told(), adapter)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (adapter / "adapter_model.safetensors").write_bytes(b"x")
    out = tmp_path / "out"
    out.mkdir()
    report_lora.run(context("report", out), Adapter.at(str(adapter)))
    LanguageReport.check_folder(str(out))
    assert {path.name for path in out.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "training.json", "curve.csv", "model-card.md",
        "summary.json", "plots",
    }  # fmt: skip
    assert {path.name for path in (out / "plots").iterdir()} == {"loss.png", "loss.svg"}
    assert jsontext.loads((out / "summary.json").read_text())["headline"].startswith("adapter of rank 8")


def test_a_report_of_a_whole_model_leaves_the_weights_where_they_are(tmp_path):
    model, samples, out = tmp_path / "model", tmp_path / "samples", tmp_path / "out"
    for folder in (model, samples, out):
        folder.mkdir()
    write_training(told(method="full"), model)
    Samples.save([CompletionSample(prompt="1+1=", completion="2")], samples / "value.json")
    report_full_samples.run(context("report", out), LanguageModel.at(str(model)), Samples.at(str(samples)))
    LanguageReport.check_folder(str(out))
    assert "```text\n1+1=\n```" in (out / "samples.md").read_text()
    assert "## Samples" in (out / "model-card.md").read_text()


@pytest.mark.parametrize("missing", ["summary.json", "training.json", "curve.csv", "model-card.md"])
def test_half_a_report_is_none(tmp_path, missing):
    for name, text in {
        "summary.json": '{"headline": ""}', "training.json": '{"curve": 1}', "curve.csv": "", "model-card.md": "",
    }.items():  # fmt: skip
        if name != missing:
            (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=missing):
        LanguageReport.check_folder(str(tmp_path))
