"""The adapters of a file as trials of one job: what holds for which, and what its recipe refuses, with line and key."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from stoker.cookbooks.language.bundled import write_base
from stoker.core.clock import SystemClock
from stoker.core.errors import InvalidAdapters, InvalidInput
from stoker.engine.catalogue import Catalogue, CookbookSource
from stoker.engine.recipe import MachineContext
from stoker.jobs.builder import JobBuild, JobBuilder
from stoker.jobs.request import JobRequest
from tests.unit.engine.lab import Lab

TWO = """
epochs = 2
[[adapter]]
data = "sums"
checkpoint = "c/legal"
label = "legal"
rank = 4
[[adapter]]
data = "chats.jsonl"
checkpoint = "c/code"
lr = 1e-3
"""


class Counter:
    """A desk and a file in front of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lab = Lab(folder / "lab")
        self._numbers = itertools.count(1)
        (folder / "files").mkdir()
        (folder / "files/chats.jsonl").write_text('{"text": "hello"}\n')

    def order(
        self, text: str, *words: str, environment: dict[str, str] | None = None, fetches: bool = False
    ) -> JobBuild:
        path = self.folder / "files" / "two.toml"
        path.write_text(text)
        builder = JobBuilder(
            catalogue=Catalogue(
                str(self.folder / "index.json"),
                [CookbookSource(name="language", value="stoker.cookbooks.language:COOKBOOK")],
            ),
            memo=self._lab.store.memo,
            clock=SystemClock(),
            folder=str(self.folder),
            version="1.2.3",
            entropy=next(self._numbers),
            environment=environment or {},
            capacity=self._lab.capacity,
            surroundings=MachineContext(fetches=lambda: fetches),
        )
        return builder.build(JobRequest(target="files/two.toml", is_adapters_file=True, overrides=tuple(words)))

    def faults(self, text: str, *words: str) -> list[str]:
        with pytest.raises(InvalidInput) as caught:
            self.order(text, *words)
        return [str(fault) for fault in caught.value.faults]


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(tmp_path)


def test_each_adapter_becomes_a_trial_with_its_label_and_checkpoints(counter: Counter) -> None:
    order = counter.order(TWO, "base=tiny", "learning_rate=5e-4", "schedule=round_robin", "rank=8")
    first, second = order.trials
    assert order.spec.name == "two"
    assert (first.spec.label, first.spec.number, second.spec.label) == ("legal", 1, "code")
    told = ("rank", "alpha", "lr", "epochs", "turns", "adapter_index")
    assert [first.spec.args[name] for name in told] == [4, 8.0, 5e-4, 2, "round_robin", 0]
    assert [second.spec.args[name] for name in told] == [8, None, 1e-3, 2, "round_robin", 1]
    assert second.spec.args["data"] == str(counter.folder / "files/chats.jsonl")
    assert first.spec.args["checkpoints"] == str(counter.folder / "files/c/legal")
    assert first.spec.args["label"] == "legal"
    assert first.spec.point == {"data": "sums", "rank": 4, "alpha": 8.0, "lr": 5e-4}
    assert second.spec.point["data"] == "chats.jsonl"
    assert second.measured_on == {
        "data": str(counter.folder / "files/chats.jsonl"),
        "max_seq_len": 512,
        "train_on": "completion",
        "holdout_percent": 5.0,
    }, "what nobody said is what the plan makes of it"
    assert order.notes == (
        "lr is a default for all adapters: code overrides it",
        "rank is a default for all adapters: legal overrides it",
    )


def test_the_environment_counts_as_it_does_for_every_run(counter: Counter) -> None:
    order = counter.order(TWO, "base=tiny", environment={"STOKER__batch": "3"})
    assert [trial.spec.args["batch"] for trial in order.trials] == [3, 3]


def test_a_base_of_the_file_is_seen_from_its_folder(counter: Counter) -> None:
    (counter.folder / "files/bases").mkdir()
    (fault,) = counter.faults(f'base = "bases"\n{TWO}')
    assert fault.startswith("files/two.toml:1:8: base: ")
    assert "no config.json" in fault


def test_what_the_recipe_refuses_is_told_with_line_and_key_once(counter: Counter) -> None:
    wrong = TWO.replace("rank = 4", 'rank = 4\ntargets = ["q_prj"]').replace("lr = 1e-3", "rank = 5000")
    first, second = counter.faults(wrong, "base=tiny")
    assert first.startswith("files/two.toml:8:11: adapter[0].targets: ")
    assert "q_proj" in first
    assert second.startswith("files/two.toml:12:8: adapter[1].rank: ")
    (typed,) = counter.faults(TWO, "base=org/nowhere")
    assert typed.startswith("base=: org/nowhere is neither a folder nor in the hub")
    (missing,) = counter.faults(TWO)
    assert "base is missing" in missing


def test_faults_of_the_words_and_of_the_file_come_together(counter: Counter) -> None:
    with pytest.raises(InvalidAdapters) as caught:
        counter.order(TWO.replace("rank = 4", "rank = 0"), "lr=x")
    assert [str(fault).partition(":")[0] for fault in caught.value.faults] == ["argument 1", "files/two.toml"]


@pytest.mark.parametrize(
    ("word", "why"),
    [("lr=1e-3,1e-4", "not swept"), ("data=sums", "has its own"), ("label=x", "has its own"), ("rnk=3", "rank")],
)
def test_words_that_can_not_hold_for_all_are_refused(counter: Counter, word: str, why: str) -> None:
    (fault,) = counter.faults(TWO, "base=tiny", word)
    assert why in fault


def test_two_adapters_that_are_the_same_are_a_fault(counter: Counter) -> None:
    text = '[[adapter]]\ndata = "sums"\ncheckpoint = "a"\n[[adapter]]\ndata = "sums"\ncheckpoint = "b"\n'
    (fault,) = counter.faults(text, "base=tiny")
    assert "b is the same as a" in fault
    assert len(counter.order(f"{text}seed = 2\n", "base=tiny").trials) == 2


def test_a_base_that_the_hub_may_have_is_said_if_nothing_else_is_wrong_and_a_damaged_one_is_a_fault(
    counter: Counter,
) -> None:
    with pytest.raises(InvalidAdapters) as caught:
        counter.order(TWO, "base=org/name")
    assert [(one.argument, one.repo) for one in caught.value.lacks] == [("base", "org/name")]
    with pytest.raises(InvalidAdapters) as caught:
        counter.order(TWO.replace("rank = 4", "rnk = 4"), "base=org/name")
    assert (len(caught.value.faults), caught.value.lacks) == (2, ())
    # What comes by itself is a fault neither beside one adapter's other faults nor beside all of theirs.
    for text in (TWO.replace("sums", "gone.jsonl"), TWO.replace("sums", "gone.jsonl").replace("lr = ", "rnk = ")):
        with pytest.raises(InvalidAdapters) as caught:
            counter.order(text, "base=org/name", fetches=True)
        assert not [one for one in caught.value.faults if "base" in one.where]
        assert caught.value.lacks == ()
    with pytest.raises(InvalidAdapters) as caught:
        counter.order(TWO, "base=org/name", fetches=True)
    assert [one.repo for one in caught.value.lacks] == ["org/name"]
    told = counter.faults('base = "nowhere"\n' + TWO.replace("sums", "gone.jsonl").replace("chats.jsonl", "no.jsonl"))
    assert ["base: folder not found: nowhere" in told[0], "gone.jsonl" in told[1], "no.jsonl" in told[2]] == [True] * 3
    base = write_base(counter.folder / "base")
    (base / "model.safetensors").write_bytes(b"")
    (fault,) = counter.faults(TWO, f"base={base}")
    assert "base=: base can't be trained: model.safetensors is damaged" in fault


def test_a_schedule_beside_the_file_may_say_whose_turn_it_is_and_a_wrong_one_is_told_both(counter: Counter) -> None:
    (fault,) = counter.faults(TWO, "base=tiny", "schedule=fast")
    assert "'fast' is not one of cosine, linear, constant; order of adapters: synchronized, round_robin" in fault


def test_data_of_an_adapter_is_what_data_of_a_run_is(counter: Counter) -> None:
    both = 'data = ["sums", {path = "chats.jsonl", weight = 0.5}]'
    order = counter.order(TWO.replace('data = "sums"', both), "base=tiny")
    bundled, listed = order.trials[0].spec.args["data"]
    assert (bundled, listed["path"], listed["weight"]) == ("sums", str(counter.folder / "files/chats.jsonl"), 0.5)
    assert order.trials[0].spec.point["data"][1]["path"] == "chats.jsonl"
    with pytest.raises(InvalidAdapters) as caught:
        counter.order(TWO.replace('"sums"', '"org/texts"'), "base=tiny", fetches=True)
    assert [(one.argument, one.repo) for one in caught.value.lacks] == [("data", "datasets/org/texts")]
    assert str(caught.value.faults[0]).startswith("files/two.toml:4:8: adapter[0].data: org/texts is neither a file")


def test_faults_in_a_list_of_data_are_told_where_they_are(counter: Counter) -> None:
    def told(data: str) -> list[str]:
        faults = counter.faults(TWO.replace('data = "sums"', f"data = {data}"), "base=tiny")
        return [fault.removeprefix("files/two.toml:4:").partition(" (")[0] for fault in faults]

    assert told('["sums", {pth = "a"}]') == [
        "24: adapter[0].data.1.pth: unknown argument",
        "17: adapter[0].data.1.path: is required",
    ]
    assert told('["sums", {path = "gone.jsonl"}, "a/b.csv"]') == [
        "17: adapter[0].data.1: there is no file 'gone.jsonl'",
        "40: adapter[0].data.2: there is no file 'a/b.csv'",
    ]
    assert told("[]") == ["8: adapter[0].data: no data"]
    assert told('["sums", ""]') == ["17: adapter[0].data.1: is empty"]
    assert told('["sums", 3]') == ["17: adapter[0].data.1: expected text or record"]
    wrong = '["sums", {path = "chats.jsonl", columns = {promt = "a", completion = "b"}}]'
    assert told(wrong) == ["59: adapter[0].data.1.columns.promt: unknown part of an example"]
