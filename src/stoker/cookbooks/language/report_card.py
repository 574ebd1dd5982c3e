"""The model card: training, data, quality, limits, and how to use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stoker.cookbooks.language.bundled import BASES
from stoker.cookbooks.language.schemas import (
    CompletionSample,
    LanguageTrainingRecord,
    best_eval,
    is_of_pairs,
    kept_point,
    perplexity,
    significant,
)
from stoker.cookbooks.report_parts import LINE_COLOURS, bullets, csv_text, markdown_table, one_plot, safe, short_number

# Curves and samples as files, and the summary for a terminal.


def curve_csv(training: LanguageTrainingRecord) -> str:
    """Return one line for each point of the curve, and whether its weights were kept."""
    more = _RANKING if is_of_pairs(training) else ("perplexity",)
    curve = training["curve"]
    rows: list[list[Any]] = []
    for one in curve["points"]:
        beyond = perplexity(one["eval_loss"])
        found = {**one, "perplexity": None if beyond is None else significant(beyond)}
        values = [found.get(name) for name in ("loss", "eval_loss", *more)]
        kept = str(one["step"] == curve["kept"]).lower()
        rows.append([one["step"], one["epoch"], *("" if value is None else value for value in values), one["lr"], kept])
    return csv_text(["step", "epoch", "loss", "eval_loss", *more, "lr", "is_kept"], rows)


_RANKING = ("accuracy", "margin", "eval_accuracy", "eval_margin")


def samples_text(samples: Sequence[CompletionSample]) -> str:
    """Return samples as Markdown, each prompt above its completion."""
    parts = [
        f"## {number}\n\n{fenced(one['prompt'])}\n\n{fenced(one['completion'])}"
        for number, one in enumerate(samples, 1)
    ]
    return "# Samples\n\nEach prompt, and its completion below it.\n\n" + "\n\n".join(parts) + "\n"


def headline(training: LanguageTrainingRecord) -> str:
    """Return the result in one sentence."""
    if is_of_pairs(training):
        point, base = kept_point(training), training["curve"]["before"]
        if point is None:
            return f"{title(training)}: not evaluated"
        ranks = training["curve"].get("before_accuracy")
        alone = "" if ranks is None else f"{_percent(ranks)}, loss "
        beside = "" if base is None else f" (the base alone: {alone}{short_number(base)})"
        ranked = f"{_percent(point.get('eval_accuracy'))} of {_held_out(training)} ranked right"
        return f"{title(training)}: {ranked}, loss {_loss(point['eval_loss'])}{beside}"
    after, before = perplexity(best_eval(training)), perplexity(training["curve"]["before"])
    judged = "not evaluated" if after is None else f"perplexity {short_number(after)} on {_held_out(training)}"
    beside = "" if before is None or after is None else f" (the base alone: {short_number(before)})"
    return f"{title(training)}: {judged}{beside}"


def title(training: LanguageTrainingRecord) -> str:
    """Return the title of the training."""
    settings, base = training["settings"], training["base"]["name"]
    if training["method"] == "full":
        return f"{base}, every weight trained"
    how = f", trained by {settings['method'].upper()}" if is_of_pairs(training) else ""
    return f"adapter of rank {settings.get('rank')} on {base}{how}"


def summary(training: LanguageTrainingRecord) -> dict[str, Any]:
    """Return the summary for a terminal: a headline, a table and what to try next."""
    curve = training["curve"]
    kept = best_eval(training)
    if is_of_pairs(training):
        return _summary_of_pairs(training)
    last = next((one for one in reversed(curve["points"]) if one["loss"] is not None), None)
    rows = [
        ["held out, the base alone", _loss(curve["before"]), _loss(perplexity(curve["before"]))],
        [f"held out, after {updates(curve['kept'])} (kept)", _loss(kept), _loss(perplexity(kept))],
    ]
    if last is not None:
        rows.append([f"training, after {updates(last['step'])}", _loss(last["loss"]), _loss(perplexity(last["loss"]))])
    return {
        "headline": headline(training),
        "table": {"columns": ["part", "loss", "perplexity"], "rows": rows},
        "next": _next(training),
    }


def _summary_of_pairs(training: LanguageTrainingRecord) -> dict[str, Any]:
    curve, point = training["curve"], kept_point(training)
    last = next((one for one in reversed(curve["points"]) if one["loss"] is not None), None)
    ranks = _percent(curve.get("before_accuracy")), _loss(curve.get("before_margin"))
    rows = [["held out, the base alone", _loss(curve["before"]), *ranks]]
    for part, one, split in (
        (f"held out, after {updates(curve['kept'])} (kept)", point, "eval_"),
        ("" if last is None else f"training, after {updates(last['step'])}", last, ""),
    ):
        found: Mapping[str, Any] = one or {}
        figures = [_loss(found.get(f"{split}loss")), _percent(found.get(f"{split}accuracy"))]
        rows += [[part, *figures, _loss(found.get(f"{split}margin"))]] if part else []
    return {
        "headline": headline(training),
        "table": {"columns": ["part", "loss", "accuracy", "margin"], "rows": rows},
        "next": _next(training),
    }


def updates(count: int) -> str:
    """Return the number of updates as text."""
    return f"{count} update{'' if count == 1 else 's'}"


def fenced(text: str) -> str:
    """Return a text as a Markdown code block, whatever it has in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _loss(value: float | None) -> str:
    return "–" if value is None else short_number(value)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _held_out(training: LanguageTrainingRecord) -> str:
    count, word = training["data"].get("held_out"), "pair" if is_of_pairs(training) else "example"
    return f"{count:,} held-out {word}{'' if count == 1 else 's'}" if isinstance(count, int) else "the held-out part"


def base_word(training: LanguageTrainingRecord) -> str:
    """Return the argument for the base. Of a folder only its last name is known."""
    name: str = training["base"]["name"]
    return name if "/" in name or name in BASES else f"PATH/{name}"


def _next(training: LanguageTrainingRecord) -> list[str]:
    settings, base = training["settings"], base_word(training)
    if training["method"] == "full":
        return [f"stoker run language/lora base={base} data=FILE.jsonl"]
    rank, lr = settings.get("rank", 16), settings.get("lr", 2e-4)
    how = f"method={settings['method']} " if is_of_pairs(training) else ""
    # A base in few bits may not fit otherwise.
    kept = f" base_dtype={settings['base_dtype']}" if settings.get("base_dtype", "auto") != "auto" else ""
    again = f"stoker run language/lora {how}rank={rank},{2 * rank} lr={lr:g},{2 * lr:g}"
    return [f"{again} base={base}{kept} data=FILE.jsonl"]


_SHOWN_SAMPLES = 5


def model_card(training: LanguageTrainingRecord, samples: Sequence[CompletionSample] = ()) -> str:
    """Write the card as Markdown."""
    losses = summary(training)["table"]
    sections = [
        f"# Model card: {safe(title(training))}",
        f"{safe(headline(training))}.",
        f"## Data\n\n{bullets(_data(training))}",
        f"## Training\n\n{bullets(_training(training))}",
        f"## Losses\n\n{markdown_table(losses['columns'], losses['rows'])}",
    ]
    if samples:
        shown = [f"{fenced(one['prompt'])}\n\n{fenced(one['completion'])}" for one in samples[:_SHOWN_SAMPLES]]
        sections.append("## Samples\n\nEach prompt, and its completion below it.\n\n" + "\n\n".join(shown))
    sections += [f"## Limits\n\n{bullets(_LIMITS)}", f"## Use\n\n{_use(training)}"]
    return "\n\n".join(sections) + "\n"


_LIMITS = (
    "The held-out part is from the same data as the rest: its loss does not apply to other texts.",
    "Wrong or unwanted answers of the base remain unless the examples teach others.",
)


def _data(training: LanguageTrainingRecord) -> list[str]:
    facts = training["data"]

    def count(name: str) -> str:
        return _said(facts.get(name, "?"))

    learned = "prompts too" if facts.get("train_on") == "all" else "of prompts and conversations only the answers"
    word = "pair" if is_of_pairs(training) else "example"
    examples = word if facts.get("examples") == 1 else f"{word}s"
    lines = [
        f"{count('examples')} {examples}, {count('held_out')} of them held out for the evaluation",
        f"{count('tokens')} tokens, {count('trained_tokens')} of them learned ({learned})",
    ]
    forms = facts.get("forms")
    if isinstance(forms, dict) and forms:
        lines.append(
            "lines: " + ", ".join(f"{_said(number)} {_FORMS.get(form, form)}" for form, number in forms.items())
        )
    if facts.get("template"):
        lines.append(f"conversations written by {_TEMPLATES.get(facts['template'], facts['template'])}")
    for one in facts.get("sources") or ():
        if isinstance(one, dict):
            of = {name: _said(one.get(name, "?")) for name in ("name", "weight", "examples", "tokens", "held_out")}
            numbers = f"{of['examples']} {word}s of weight {of['weight']}, {of['tokens']} tokens"
            lines.append(f"{of['name']}: {numbers}, {of['held_out']} held out")
    notes = facts.get("notes")
    return [*lines, *(notes if isinstance(notes, list) else [])]


_FORMS = {
    "text": "plain texts",
    "completion": "prompts with completions",
    "messages": "conversations",
    "pair": "pairs of completions",
    "chat_pair": "pairs of conversations",
}
_TEMPLATES = {"tokenizer": "the tokenizer's own chat template", "chatml": "ChatML: the tokenizer has no template"}


def _training(training: LanguageTrainingRecord) -> list[str]:
    base, curve = training["base"], training["curve"]
    lines = [
        f"base: {base['name']} ({base['family']}, {base['parameters']:,} weights)",
        f"trained: {training['weights']:,} weights, on {training['device']} in {training['dtype']}",
        ", ".join(f"{name} {_said(value)}" for name, value in training["settings"].items() if value is not None),
        f"{updates(curve['points'][-1]['step'] if curve['points'] else 0)}; kept: after {curve['kept']}",
    ]
    return [
        *lines,
        *training["notes"],
        *(f"{name} {version}" for name, version in sorted(training["versions"].items())),
    ]


def _use(training: LanguageTrainingRecord) -> str:
    name = base_word(training)
    if training["method"] == "full":
        return (
            "```python\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            'model = AutoModelForCausalLM.from_pretrained("train_full")\n'
            'tokenizer = AutoTokenizer.from_pretrained("train_full")\n'
            "```\n\n"
            "The model is in the folder `train_full` beside this card."
        )
    merge = f"`stoker run language/merge base={safe(name)} adapter=FOLDER`"
    if name in BASES:
        return (
            f"Its base is bundled with Stoker, not on a hub: {merge} merges both into a model that transformers loads."
        )
    return (
        "```python\n"
        "from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM\n"
        f"base = AutoModelForCausalLM.from_pretrained({name!r})\n"
        'model = PeftModel.from_pretrained(base, ".")\n'
        "```\n\n"
        f"Or merge it into its base: {merge}."
    )


def _said(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


# The plots of a report.


def all_plots(training: LanguageTrainingRecord) -> Iterator[tuple[str, str, Figure]]:
    """Return (file name, caption, figure) of every plot."""
    if is_of_pairs(training):
        yield "loss", "", _curves(training, "loss", "Loss per pair")
        yield "accuracy", "", _curves(training, "accuracy", "Pairs ranked right")
    else:
        yield "loss", "", _curves(training, "loss", "Loss per token")


def _curves(training: LanguageTrainingRecord, name: str, heading: str) -> Figure:
    """Plot a measure of the training part, and of the held-out part."""
    curve = training["curve"]
    figure, axes = one_plot()
    points: list[dict[str, Any]] = [{**one} for one in curve["points"]]
    trained, judged = (
        [(one["step"], one[key]) for one in points if one.get(key) is not None] for key in (name, f"eval_{name}")
    )
    base = curve["before"] if name == "loss" else curve.get("before_accuracy")
    if base is not None:
        judged = [(0, base), *judged]
    for place, (shown, label) in enumerate(((trained, "training part"), (judged, "held-out part"))):
        if shown:
            steps, values = zip(*shown, strict=True)
            marker = "o" if len(shown) < 50 else ""
            axes.plot(steps, values, color=LINE_COLOURS[place], label=label, marker=marker, markersize=3)
    axes.axvline(curve["kept"], color="#7F7F7F", linestyle=":", label=f"kept: after {updates(curve['kept'])}")
    axes.set_title(heading)
    axes.set_xlabel("updates")
    axes.set_ylabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure
