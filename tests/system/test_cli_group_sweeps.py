"""A sweep over a group of files, asked about afterwards: each trial is told with its own values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.system.shell import Shell


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("groups"), index=index)
    for name, text in {
        "base.yaml": "defaults: [model: small, _self_]\noptim: {lr: 0.1}\nname: ${model.kind}-${optim.lr}\n",
        "model/small.yaml": "width: 8\nkind: s\nonly: 1\n",
        "model/large.yaml": "width: 64\nkind: l\nextra: 3\n",
        "train.py": "print('done')\n",
    }.items():
        path = shell.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    words = ["--config", "base.yaml", "model=small,large", "env.TOKEN=sekret", "--name", "grp"]
    assert shell.stoker("run", *words, "--", sys.executable, "-S", "train.py").code == 0
    return shell


def winner(shell: Shell, target: str, key: str) -> tuple[object, str]:
    (told,) = shell.stoker("explain", target, key, "--json").objects()
    return told["layers"][-1]["value"], told["layers"][-1]["from"]


def test_a_value_of_a_group_s_option_is_explained_for_the_trial_that_chose_it(swept: Shell) -> None:
    assert winner(swept, "grp/1", "model.width") == (8, "model/small.yaml:1:8")
    assert winner(swept, "grp/2", "model.width") == (64, "model=large")
    assert winner(swept, "grp/2", "model.extra") == (3, "model=large")
    assert "small.yaml" not in swept.stoker("explain", "grp/2", "model.width").out


def test_what_only_another_option_has_is_not_there(swept: Shell) -> None:
    assert winner(swept, "grp/1", "model.only") == (1, "model/small.yaml:3:7")
    done = swept.stoker("explain", "grp/2", "model.only")
    assert done.code == 1
    assert done.err.startswith("stoker: no setting 'model.only'\n")
    assert "did you mean 'model.only'" not in done.err


def test_a_value_with_references_is_explained_as_it_was_used(swept: Shell) -> None:
    assert winner(swept, "grp/2", "name") == ("l-0.1", "base.yaml:3:7, resolved")
    assert winner(swept, "grp/1", "name")[0] == "s-0.1"


def test_of_the_whole_job_no_trial_wins_a_value_that_varies(swept: Shell) -> None:
    told = swept.stoker("explain", "grp", "model.width").out
    assert "→" not in told
    assert "trial 2 (model=large)" in told
    assert "→" in swept.stoker("explain", "grp", "optim.lr").out


def test_two_trials_differ_in_what_their_options_bring(swept: Shell) -> None:
    facts = {fact["name"]: fact for fact in swept.stoker("compare", "grp/1", "grp/2", "--json").objects()}
    differing = [name for name, fact in facts.items() if fact["section"] == "config" and not fact["is_same"]]
    assert sorted(differing) == ["model", "model.extra", "model.kind", "model.only", "model.width", "name"]
    assert facts["model.width"]["values"] == [8, 64]
    assert facts["model.width"]["origins"] == ["model/small.yaml:1:8", "model=large"]


def test_the_same_in_every_trial_is_only_what_is(swept: Shell) -> None:
    done = swept.stoker("compare", "grp")
    assert done.code == 0, done.err
    page = (swept.folder / "stoker-out/grp/compare/compare.html").read_text()
    same = page[page.index("The same in every trial") :]
    assert "optim.lr" in same
    assert not any(name in same for name in ("model.width", "model.kind", "model.only", "s-0.1"))


def test_without_a_metric_it_is_said_how_to_report_one(swept: Shell) -> None:
    assert "print lines such as `step 10 loss 0.5`" in swept.stoker("compare", "grp", "--no-plots").err


def test_what_a_variable_of_a_program_holds_is_shown_nowhere(swept: Shell) -> None:
    assert swept.stoker("run", "env.TOKEN=sekret", "--name", "one", "--", "true").code == 0
    for words in (
        ["jobs", "show", "one"],
        ["explain", "one", "env"],
        ["explain", "one"],
        ["explain", "grp/2", "env"],
        ["config", "show", "env.TOKEN=sekret", "--", "true"],
        ["config", "show", "env={TOKEN: sekret}", "--why", "env", "--", "true"],
        ["compare", "grp/1", "one", "--no-plots"],
        ["compare", "grp"],
    ):
        at = words.index("--") if "--" in words else len(words)
        for flags in ([], ["--json"]):
            done = swept.stoker(*words[:at], *flags, *words[at:])
            assert done.code == 0, done.err
            assert "sekret" not in done.out + done.err, words
    assert "env.TOKEN=…" in swept.stoker("jobs", "show", "one").out
    assert "sekret" not in (swept.folder / "stoker-out/grp/compare/compare.html").read_text()


def test_variables_that_differ_still_differ(swept: Shell) -> None:
    assert swept.stoker("run", "env.TOKEN=another", "--name", "two", "--", "true").code == 0
    assert swept.stoker("run", "env.TOKEN=sekret", "--name", "three", "--", "true").code == 0
    facts = {fact["name"]: fact for fact in swept.stoker("compare", "two", "three", "--json").objects()}
    assert facts["env.TOKEN"]["values"] == ["…", "… (2)"]
    assert not facts["env.TOKEN"]["is_same"]


def test_jobs_and_scratch_are_only_the_user_s_own(swept: Shell) -> None:
    assert [(swept.home / name).stat().st_mode & 0o777 for name in ("runs", "scratch")] == [0o700, 0o700]


def test_a_program_that_wrote_nothing_is_told_so(swept: Shell) -> None:
    done = swept.stoker("run", "--name", "nothing", "--", "true")
    assert "results: stoker-out/nothing  (no files in $STOKER_OUT)" in done.out
