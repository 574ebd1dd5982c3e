"""`stoker compare` as a user gives it: after real sweeps of a real program."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

import pytest

from tests.system.shell import Shell

TRAIN = """
import sys
lr, w = float(sys.argv[1]), 5.0
for step in range(40):
    w -= lr * 2 * w
    print(f"step={step} loss={w * w:.6f} accuracy={1 / (1 + w * w):.6f}")
if lr > 1:
    raise ValueError("loss is <nan>")
"""
PICTURES = ["compare.html", "curves.png", "curves.svg", "metrics.png", "metrics.svg"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Shell:
    """A shell in which a sweep has run, and then the same program once more after an edit."""
    shell = Shell(tmp_path_factory.mktemp("swept"), index=index)
    script = shell.folder / "train.py"
    script.write_text(TRAIN)
    run = ["--", sys.executable, "train.py", "{lr}"]
    assert shell.stoker("run", "lr=2,0.1,0.01,0.001", "--name", "sweep", *run).code == 1
    script.write_text(TRAIN.replace("range(40)", "range(50)"))
    assert shell.stoker("run", "lr=0.01", "--name", "again", *run).code == 0
    return shell


@pytest.fixture
def fresh(swept: Shell) -> Shell:
    """The same shell without what an earlier test wrote."""
    shutil.rmtree(swept.folder / "stoker-out" / "sweep" / "compare", ignore_errors=True)
    return swept


def test_trials_are_compared_best_first_with_pictures_beside_the_results(fresh: Shell) -> None:
    done = fresh.stoker("compare", "sweep", "--by", "loss")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "sweep: 4 trials (3 completed, 1 failed)"
    assert lines[1].startswith("ranked by loss, smaller is better")
    assert lines[2] == "best: lr=0.1  loss 0"
    rows = [line.split() for line in lines[5:9]]
    assert [row[1:3] for row in rows] == [["2", "0.1"], ["3", "0.01"], ["4", "0.001"], ["1", "2"]]
    assert lines[8].endswith("failed: exit 1: ValueError: loss is <nan> (train.py:8)")
    folder = fresh.folder / "stoker-out" / "sweep" / "compare"
    assert sorted(path.name for path in folder.iterdir()) == PICTURES
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "compare.html").read_text()
    assert page.count("<svg ") == 2
    assert "loss is &lt;nan&gt;" in page
    assert "loss is <nan>" not in page


def test_what_it_is_ranked_by_is_guessed_and_said_and_can_be_chosen(fresh: Shell) -> None:
    guessed = fresh.stoker("compare", "sweep", "--no-plots").out.splitlines()
    assert guessed[1] == (
        "ranked by accuracy, larger is better (guessed by its name; change it with --by NAME, --min or --max)"
    )
    turned = fresh.stoker("compare", "sweep", "--by", "loss", "--max", "--no-plots").out.splitlines()
    assert turned[1] == "ranked by loss, larger is better"
    assert turned[2].startswith("best: lr=0.001")
    assert not (fresh.folder / "stoker-out" / "sweep" / "compare").exists()


def test_json_is_an_object_a_trial_best_first(fresh: Shell) -> None:
    rows = fresh.stoker("compare", "sweep", "--json", "--no-plots").objects()
    assert [row["trial"] for row in rows] == [2, 3, 4, 1]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4]
    best = rows[0]
    assert (best["params"], best["ranked_by"], best["better"], best["is_guess"]) == (
        {"lr": 0.1},
        "accuracy",
        "larger",
        True,
    )
    assert best["peak_bytes"] > 0
    assert set(best["metrics"]) == {"loss", "accuracy"}
    assert (rows[3]["state"], rows[3]["message"]) == ("failed", "exit 1: ValueError: loss is <nan> (train.py:8)")


def test_everything_goes_into_a_csv_file_and_pictures_where_they_are_wanted(fresh: Shell) -> None:
    done = fresh.stoker("compare", "sweep", "--csv", "trials.csv", "--out", "pictures")
    assert done.code == 0, done.err
    with (fresh.folder / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["param.lr"] for row in rows] == ["0.1", "0.01", "0.001", "2"]
    assert float(rows[2]["metric.loss"]) == pytest.approx(21.3, abs=0.1)
    assert sorted(path.name for path in (fresh.folder / "pictures").iterdir()) == PICTURES
    assert not (fresh.folder / "stoker-out" / "sweep" / "compare").exists()


def test_without_matplotlib_everything_but_png_comes_and_one_line_says_what_to_install(
    fresh: Shell, tmp_path: Path
) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')\n")
    done = fresh.stoker("compare", "sweep", PYTHONPATH=f"{tmp_path}:{fresh.env['PYTHONPATH']}")
    assert done.code == 0
    assert [line for line in done.err.splitlines() if "matplotlib" in line] == [
        f"note: PNG plots need matplotlib: {sys.executable} -m pip install 'stoker[plots]'"
    ]
    assert "Traceback" not in done.err
    folder = fresh.folder / "stoker-out" / "sweep" / "compare"
    assert sorted(path.name for path in folder.iterdir()) == ["compare.html", "curves.svg", "metrics.svg"]


def test_two_jobs_are_compared_in_config_code_data_environment_and_metrics(fresh: Shell) -> None:
    done = fresh.stoker("compare", "sweep/3", "again", "--out", "beside")
    assert done.code == 0, done.err
    assert "different: code" in done.out
    lines = done.out.splitlines()
    code = lines[lines.index(next(line for line in lines if line.startswith("code:"))) + 2]
    assert code.split()[0] == "train.py"
    assert "  lr" not in done.out
    assert next(line for line in lines if line.startswith("  loss")).split()[-1].endswith("%)")
    assert sorted(path.name for path in (fresh.folder / "beside").iterdir()) == [
        "compare.html",
        "curves.png",
        "curves.svg",
    ]
    facts = fresh.stoker("compare", "sweep/3", "again", "--json").objects()
    assert {fact["section"] for fact in facts} == {"config", "code", "environment", "metrics"}
    (changed,) = [fact for fact in facts if fact["section"] == "code" and not fact["is_same"]]
    assert changed["name"] == "train.py"
    assert changed["sides"] == ["sweep/3", "again"]


def test_two_trials_differ_in_what_the_sweep_set_and_a_job_is_identical_to_itself(fresh: Shell) -> None:
    trials = fresh.stoker("compare", "sweep/2", "sweep/3").out
    assert "different: config\n" in trials
    assert "  lr  0.1 (sweep)  0.01 (sweep)" in trials
    itself = fresh.stoker("compare", "again", "again")
    assert itself.code == 0
    assert "identical: config, code and environment are the same, and the metrics too" in itself.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("swep",), 1, "there is no job 'swep'\nhint: did you mean 'sweep'?"),
        (("sweep", "agian"), 1, "hint: did you mean 'again'?"),
        (("sweep/9", "again"), 1, "job sweep has no trial '9'\nhint: it has 4"),
        (("sweep/2",), 2, "sweep/2 is one trial"),
        (("sweep", "--by", "los"), 1, "no trial has a metric 'los'\nhint: did you mean 'loss'?"),
        (("sweep", "--min", "--max"), 2, "--min and --max exclude each other"),
        (("sweep", "--out", "train.py"), 16, "train.py"),
    ],
)
def test_what_can_t_be_compared_is_refused_with_what_to_do(
    fresh: Shell, words: tuple[str, ...], code: int, says: str
) -> None:
    done = fresh.stoker("compare", *words)
    assert done.code == code, done.err
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_refusal_is_json_too(fresh: Shell) -> None:
    (told,) = fresh.stoker("compare", "swep", "--json").objects()
    assert (told["error"], told["exit_code"]) == ("not_found", 1)


def test_where_nothing_has_run_it_says_so(shell: Shell) -> None:
    done = shell.stoker("compare")
    assert (done.code, "nothing has run here yet" in done.err) == (1, True)


# --- rankings -----------------------------------------------------------------------------------


def test_trials_of_all_jobs_are_ranked_by_a_metric_together(swept: Shell) -> None:
    rows = swept.stoker("jobs", "--rank", "loss", "--json").objects()
    assert [(row["place"], row["name"]) for row in rows][:2] == [(1, "sweep/2"), (2, "again")]
    assert {row["state"] for row in rows} == {"completed"}, "a failed trial is not ranked"
    assert [row["value"] for row in rows] == sorted(row["value"] for row in rows)
    first = swept.stoker("jobs", "--rank", "accuracy", "--limit", "1")
    assert first.out.splitlines()[0].split() == ["job", "point", "state", "accuracy", "took", "machine", "recipe"]
    assert "3 more have this metric" in first.err
    unknown = swept.stoker("leaderboard", "los")
    assert unknown.code != 0
    assert "did you mean 'loss'?" in unknown.err


# --- reports -------------------------------------------------------------------------------------


def test_a_report_of_a_sweep_is_one_file_that_is_the_same_each_time(swept: Shell) -> None:
    done = swept.stoker("report", "sweep", "-o", "report.html", "--by", "loss")
    assert done.code == 0, done.err
    assert done.out.startswith("report: report.html  (")
    page = (swept.folder / "report.html").read_text()
    assert page.count("<svg ") == 2
    assert "stoker run lr=2,0.1,0.01,0.001 --name sweep -- " in page
    assert "argument 1 (lr=2,0.1,0.01,0.001)" in page or "sweep</td>" in page
    assert "loss is <nan>" not in page
    (written,) = swept.stoker("report", "sweep", "-o", "second.html", "--by", "loss", "--json").objects()
    assert (written["format"], written["size_bytes"]) == ("html", len(page.encode()))
    assert (swept.folder / "second.html").read_text() == page
    assert swept.stoker("report", "sweep/2", "-o", "trial.md").code == 0
    assert "One run of a program: sweep" in (swept.folder / "trial.md").read_text()


def test_a_report_names_what_is_wrong_before_it_reads_a_job(swept: Shell) -> None:
    wrong = swept.stoker("report", "sweep", "-o", "report.docx")
    assert wrong.code == 2
    assert "does not end with .html, .md or .pdf" in wrong.err
    assert swept.stoker("report", "no-such-job", "-o", "a.html").code != 0
    assert not (swept.folder / "a.html").exists()
