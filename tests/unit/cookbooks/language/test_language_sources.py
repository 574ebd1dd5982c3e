"""Sources of data: tables, folders, splits and weights, and everything that strangers put into them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.authoring import InputPath, InvalidArgs, StageContext, StageInputError
from stoker.cookbooks.language import reading, table_rows
from stoker.cookbooks.language.arguments import SourceArgs
from stoker.cookbooks.language.bundled import bundled_base, write_base
from stoker.cookbooks.language.data_sets import chosen_files
from stoker.cookbooks.language.examples import ExampleSet
from stoker.cookbooks.language.reading import InvalidLines, RawExample, layout_of, read_lines
from stoker.cookbooks.language.tokenise import TokeniseArgs, look_through, tokenise
from stoker.core.digests import Digest
from stoker.core.errors import BadInput
from stoker.engine.code_identity import missing_of
from stoker.engine.recipe import MachineContext, surrounded_by
from stoker.engine.stage import perform
from stoker.transfer.hub.hub_cache import HubCache
from stoker.transfer.hub.listing import Repo, RepoFile
from tests.unit.cookbooks.language.walked_language import compiled

pytest.importorskip("tokenizers")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

OUTSIDE = ("../../../../etc/secrets.jsonl", "/etc/secrets.jsonl", "a/../../b.jsonl")
PAIRS = {"prompt": ["1+1=", "2+2="], "completion": ["2", "4"]}


def read(path: Path, **columns: str) -> list[RawExample]:
    faults = InvalidLines(path.name)
    found = list(read_lines(path, layout_of(path), faults, columns))
    faults.refuse()
    return found


def refused(path: Path, **columns: str) -> str:
    with pytest.raises(StageInputError) as caught:
        read(path, **columns)
    return f"{caught.value.message} | {caught.value.hint}"


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def faults_of(**given: Any) -> dict[str, str]:
    with pytest.raises(InvalidArgs) as caught:
        compiled("lora", **given)
    return {
        fault.where.removeprefix("language/lora."): f"{fault.message} | {fault.hint}" for fault in caught.value.faults
    }


def tokenised(out: Path, *sources: SourceArgs, **args: Any) -> ExampleSet:
    out.mkdir()
    job = StageContext(node="tokenise", out=str(out), emit=lambda _: None, is_cancelled=lambda: False)
    base = InputPath(str(bundled_base("tiny")))
    return perform(tokenise, job, {}, TokeniseArgs(base=base, base_files=(), sources=sources, **args)).load()


def source(path: Path, **more: Any) -> SourceArgs:
    return SourceArgs(name=path.name, files=(InputPath(str(path)),), layouts=(layout_of(path),), **more)


# Tables.


def test_a_csv_file_has_quotes_newlines_a_mark_and_any_usual_delimiter(tmp_path):
    content = '\ufeffid,prompt,completion\r\n1,"say ""a, b""","two\nlines"\r\n\r\n2,plain,x\r\n'
    found = read(written(tmp_path / "a.csv", content))
    assert [(one.number, one.text, one.completion) for one in found] == [
        (2, 'say "a, b"', "two\nlines"),
        (5, "plain", "x"),
    ]
    for name, sign in (("b.csv", ";"), ("c.tsv", "\t"), ("d.csv", "\t")):
        assert read(written(tmp_path / name, f"text{sign}id\nhello, you{sign}1\n"))[0].text == "hello, you"


def test_a_conversation_in_a_csv_file_is_json(tmp_path):
    talk = json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]).replace('"', '""')
    assert read(written(tmp_path / "a.csv", f'messages\n"{talk}"\n'))[0].messages[1].content == "ho"
    assert "a.csv:2: messages is no JSON list" in refused(written(tmp_path / "a.csv", "messages\nhello\n"))


ASKED, SAID, NOT_SAID = (
    json.dumps([{"role": role, "content": text}])
    for role, text in (("user", "hi"), ("assistant", "ho"), ("assistant", "hm"))
)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_conversations_in_a_table_of_pairs_are_json(tmp_path, kind):
    def table(**columns: str) -> Path:
        if kind == "parquet":
            return parquet(tmp_path / "a.parquet", {name: [value] for name, value in columns.items()})
        values = ",".join('"' + value.replace('"', '""') + '"' for value in columns.values())
        return written(tmp_path / "a.csv", f"{','.join(columns)}\n{values}\n")

    (found,) = read(table(prompt=ASKED, chosen=SAID, rejected=NOT_SAID))
    assert (found.form, [one.context for one in found.sides]) == ("chat_pair", [1, 1])
    assert [[one.content for one in side.messages] for side in found.sides] == [["hi", "ho"], ["hi", "hm"]]
    begun = [f"{ASKED[:-1]}, {side[1:]}" for side in (SAID, NOT_SAID)]
    (found,) = read(table(chosen=begun[0], rejected=begun[1]))
    assert [one.context for one in found.sides] == [1, 1]
    # Other lists are texts, as are conversations that are only completed.
    for chosen, rejected in (("[1]", "[2]"), ('[{"a": 1}]', "[]"), ("[open", "[" * 100_000)):
        (found,) = read(table(prompt="x", chosen=chosen, rejected=rejected))
        assert [one.completion for one in found.sides] == [chosen, rejected]
    (found,) = read(table(prompt=ASKED, completion=SAID))
    assert (found.text, found.completion) == (ASKED, SAID)
    assert "chosen is a list, not a text" in refused(table(prompt="x", chosen=SAID, rejected="no"))


def test_columns_of_what_has_none_are_refused(tmp_path):
    named = {"prompt": "q", "completion": "a"}
    assert faults_of(data="sums", columns=named) == {"columns": "sums is bundled: it has no columns | leave it out"}
    text, table = (written(tmp_path / name, "q,a\n1,2\n") for name in ("a.txt", "a.csv"))
    told = faults_of(data=[str(table), {"path": str(text), "columns": named}])
    assert told == {"data.1.columns": f"{text} is plain text: it has no columns | leave it out"}
    assert faults_of(data=[str(text), "sums"], columns=named).keys() == {"columns"}
    assert compiled("lora", data=[str(table), str(text)], columns=named).nodes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prompt,completion\na,b\nc\n", "a.csv:3: it has 1 value; the header has 2 columns | correct these rows"),
        ('prompt,completion\na,"b\n\nc,d\n', "a.csv:2: a quote is not closed"),
        ('text\n"a"b"\n', "a.csv:2: "),
        ("a,b,a\n1,2,3\n", "a.csv:1: duplicate column 'a'"),
        ("\n\n", "a.csv:1: there are no columns"),
        ("", "a.csv is empty"),
        (b"text\nok\n\xff\xfe\n", "a.csv:3: byte 1 is not UTF-8"),
        ("text\nok\n".encode("utf-16"), "a.csv is UTF-16"),
        (b"text\na\0b\n", "a.csv:2: text holds a NUL character"),
        ("x,y\n1,2\n", "a.csv has no known columns; its columns are 'x', 'y' | name them: "),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_told_with_its_line(tmp_path, content, message):
    assert message in refused(written(tmp_path / "a.csv", content))


def test_a_value_without_an_end_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("stoker.cookbooks.language.table_rows.LONGEST_VALUE", 1000)
    told = refused(written(tmp_path / "a.csv", 'text\n"' + "x\n" * 5000))
    assert "a.csv:2: a value is longer than" in told


def test_a_parquet_file_is_read_by_its_columns(tmp_path):
    talk = [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]]
    assert read(parquet(tmp_path / "a.parquet", {**PAIRS, "n": [1, 2]}))[1].completion == "4"
    assert read(parquet(tmp_path / "b.parquet", {"messages": talk, "prompt": ["x"]}))[0].messages[1].content == "ho"
    named = parquet(tmp_path / "c.parquet", {"q": pa.array(["a"]).dictionary_encode(), "a": ["b"]})
    assert read(named, prompt="q", completion="a")[0].text == "a"


@pytest.mark.parametrize(
    ("columns", "named", "message"),
    [
        ({"text": [1, 2]}, {}, "a.parquet: column 'text' has int64, not text | choose another column"),
        ({"text": [{"deep": "x"}]}, {}, "column 'text' has struct<deep: string>, not text"),
        ({"text": ["fine", None]}, {}, "a.parquet:2: text is null, not a text"),
        (
            {"question": ["a"], "reply": ["b"]},
            {},
            "a.parquet has no known columns; its columns are 'question'",
        ),
        ({"q": ["a"]}, {"text": "p"}, "a.parquet has no column 'p'; its columns are 'q'"),
        ({"messages": [["a"]]}, {}, "a.parquet:1: message 1 is a text, not an object"),
    ],
)
def test_what_is_wrong_with_a_parquet_file_is_told_with_its_row(tmp_path, columns, named, message):
    assert message in refused(parquet(tmp_path / "a.parquet", columns), **named)


def test_a_parquet_file_that_is_cut_or_has_a_column_twice_is_refused(tmp_path):
    whole = parquet(tmp_path / "a.parquet", PAIRS).read_bytes()
    for content in (whole[:-20], whole[: len(whole) // 2] + whole[-8:], b"PAR1", b"nothing of the sort"):
        assert "a.parquet is not a whole Parquet file" in refused(written(tmp_path / "a.parquet", content))
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "b.parquet")
    assert "duplicate column 'text'" in refused(tmp_path / "b.parquet")


def test_usual_names_are_known_and_others_are_mapped(tmp_path):
    assert read(written(tmp_path / "a.jsonl", '{"question": "q", "answer": "a"}\n'))[0].completion == "a"
    assert read(written(tmp_path / "a.csv", "instruction,output\nq,a\n"))[0].text == "q"
    assert "no known columns" in refused(written(tmp_path / "a.csv", "instruction,input,output\nq,i,a\n"))
    talk = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    for path in (
        written(tmp_path / "c.jsonl", json.dumps({"conversations": talk, "id": 7})),
        parquet(tmp_path / "c.parquet", {"conversations": [talk]}),
    ):
        assert [(one.role, one.content) for one in read(path)[0].messages] == [("user", "hi"), ("assistant", "ho")]
    told = refused(written(tmp_path / "b.jsonl", '{"body": "x", "n": 1}\n'), text="boddy")
    assert "b.jsonl:1: it has no 'boddy'; it has 'body', 'n'" in told


def test_pyarrow_is_asked_for_only_if_a_file_needs_it(tmp_path, monkeypatch):
    monkeypatch.setattr("stoker.engine.code_identity.version_of", lambda name: "" if name == "pyarrow" else "1")
    monkeypatch.setattr("stoker.engine.code_identity._ABSENT", "")
    for name in ("a.parquet", "a.jsonl.zst"):
        node = compiled("lora", data=str(written(tmp_path / name, "x"))).node("tokenise_tables")
        missing = missing_of([node.stage])
        assert missing is not None
        assert str(missing) == "language/tokenise_tables needs pyarrow: not installed"
        assert missing.hint.endswith("-m pip install 'stoker[language]'")
    assert missing_of([compiled("lora", data=str(written(tmp_path / "a.csv", "x"))).node("tokenise").stage]) is None


# Compressed files.


def test_compressed_lines_are_read_and_bounded(tmp_path, monkeypatch):
    lines = b'{"text": "hello"}\n' * 2000
    assert len(read(written(tmp_path / "a.jsonl.gz", gzip.compress(lines)))) == 2000
    assert len(read(written(tmp_path / "a.txt.gz", gzip.compress(b"one\n\ntwo\n")))) == 2
    assert len(read(written(tmp_path / "a.jsonl.zst", pa.compress(lines, "zstd", asbytes=True)))) == 2000
    monkeypatch.setattr(reading, "LARGEST_UNPACKED_BYTES", 10_000)
    monkeypatch.setattr(reading, "MOST_TIMES_UNPACKED", 10)
    assert "a.jsonl.gz unpacks to more than" in refused(tmp_path / "a.jsonl.gz")
    assert "can't be read" in refused(written(tmp_path / "b.jsonl.gz", gzip.compress(lines)[:-30]))
    assert "can't be read" in refused(written(tmp_path / "c.jsonl.gz", lines))
    many = parquet(tmp_path / "d.parquet", {"text": pa.array(["the same words"] * 100_000)})
    assert many.stat().st_size < 100_000
    assert "d.parquet unpacks to more than" in refused(many)


# Folders and splits.


def test_a_folder_is_one_source_and_its_splits_have_names(tmp_path):
    for name in ("data/train-00000-of-00002", "data/train-00001-of-00002", "data/test-00000-of-00001"):
        parquet(tmp_path / f"{name}.parquet", PAIRS)
    written(tmp_path / "README.md", "# A set\n")
    plan = compiled("lora", data=str(tmp_path), eval_split="test")
    train, held = plan.node("tokenise_tables").args["sources"]
    assert [Path(one).name for one in train["files"]] == [f"train-0000{n}-of-00002.parquet" for n in (0, 1)]
    assert [Path(one).name for one in held["files"]] == ["test-00000-of-00001.parquet"]
    assert (train["is_eval"], held["is_eval"]) == (False, True)
    told = faults_of(data=str(tmp_path), split="tset")["data"]
    assert "there is no split 'tset' | did you mean 'test'?" in told
    alone = written(tmp_path.parent / "alone.jsonl", '{"text": "x"}\n')
    sources = compiled("lora", data=[str(tmp_path), str(alone)], split="", eval_split="test").node("tokenise_tables")
    assert [one["is_eval"] for one in sources.args["sources"]] == [False, False, True]
    assert "no source has splits" in faults_of(data=[str(alone), "sums"], eval_split="test")["eval_split"]
    assert "is also the split to train on" in faults_of(data=str(tmp_path), eval_split="train")["eval_split"]
    (tmp_path / "data/train-00000-of-00002.parquet").unlink()
    assert "1 of the 2 files of data/train are not there" in faults_of(data=str(tmp_path))["data"]


def test_a_card_names_the_files_of_each_split(tmp_path):
    card = """---
language: [en]
configs:
- config_name: small
  default: true
  data_files:
  - split: train
    path: part/a*.jsonl
- config_name: large
  data_files: "**/*.jsonl"
---
"""
    written(tmp_path / "README.md", card)
    for name in ("part/a1.jsonl", "part/a2.jsonl", "part/b.jsonl"):
        written(tmp_path / name, '{"text": "x"}\n')

    def names(**given: str) -> list[str]:
        sources = compiled("lora", data=str(tmp_path), **given).node("tokenise").args["sources"]
        return [Path(one).name for one in sources[0]["files"]]

    assert names() == ["a1.jsonl", "a2.jsonl"]
    assert names(subset="large") == ["a1.jsonl", "a2.jsonl", "b.jsonl"]
    assert "there is no subset 'lrge' | did you mean 'large'?" in faults_of(data=str(tmp_path), subset="lrge")["data"]
    written(tmp_path / "README.md", card.replace("- split", "- {split"))
    assert "the configurations in its README.md can't be read" in faults_of(data=str(tmp_path))["data"]


def test_a_folder_that_is_no_set_is_refused(tmp_path):
    assert "it has no files of examples" in faults_of(data=str(tmp_path))["data"]
    written(tmp_path / "a.jsonl", '{"text": "x"}\n')
    written(tmp_path / "b.csv", "text\nx\n")
    assert "it has files of several formats (1 .csv, 1 .jsonl)" in faults_of(data=str(tmp_path))["data"]
    (tmp_path / "b.csv").unlink()
    (tmp_path / "c.jsonl").symlink_to("/etc/passwd")
    assert "c.jsonl is a link out of the folder" in faults_of(data=str(tmp_path))["data"]
    assert "has no splits or subsets" in faults_of(data=str(tmp_path / "a.jsonl"), split="train")["split"]


def test_a_listing_in_the_cache_names_no_file_outside_of_it(tmp_path):
    cache, repo, commit = HubCache(str(tmp_path / "hub")), Repo(kind="dataset", name="org/set"), "0" * 40
    written(Path(cache.snapshot(repo, commit)) / "README.md", "# A set\n")
    cache.write_ref(repo, "main", commit)
    digest = Digest("0" * 64)
    cache.write_tree(repo, commit, tuple(RepoFile(path=one, size_bytes=1, sha256=digest) for one in OUTSIDE))
    with surrounded_by(MachineContext(hub_cache=lambda: cache.root)):
        told = faults_of(data="org/set")["data"]
    assert "org/set: it has no files of examples" in told


# Several sources.


def test_several_sources_are_drawn_by_their_weights(tmp_path):
    one = written(tmp_path / "one.jsonl", "".join(f'{{"text": "a{n}"}}\n' for n in range(10)))
    two = written(tmp_path / "two.csv", "text\n" + "".join(f"b{n}\n" for n in range(20)) + '""\n')
    made = tokenised(tmp_path / "out", source(one, weight=2.5), source(two, weight=0.5), holdout_percent=10.0)
    facts = made.facts["sources"]
    assert [(own["name"], own["examples"], own["skipped"]) for own in facts] == [
        ("one.jsonl", 10, 0),
        ("two.csv", 20, 1),
    ]
    assert sum(own["held_out"] for own in facts) == made.facts["held_out"] == 3
    kept = [own["examples"] - own["held_out"] for own in facts]
    drawn = made.drawn(seed=1)
    counts = np.bincount(drawn, minlength=30)
    assert counts[:10].sum() == 2 * kept[0] + int(kept[0] / 2 + 0.5)
    assert counts[10:].sum() == int(kept[1] / 2 + 0.5)
    assert not counts[made.held_out].any()
    assert (made.drawn(seed=1) == drawn).all()
    assert (made.drawn(seed=2) != drawn).any()


def test_a_split_for_evaluation_is_held_out_as_a_whole(tmp_path):
    one = written(tmp_path / "one.jsonl", '{"text": "a"}\n{"text": "b"}\n')
    two = written(tmp_path / "two.jsonl", '{"text": "c"}\n{"text": ""}\n')
    made = tokenised(tmp_path / "out", source(one), source(two, is_eval=True))
    assert made.held_out.tolist() == [2]
    assert made.kept.tolist() == [0, 1]
    with pytest.raises(StageInputError, match=r"nothing to learn in two\.jsonl"):
        tokenised(tmp_path / "empty", source(one), source(written(two, '{"text": ""}\n'), is_eval=True))


def test_faults_of_all_files_are_told_together(tmp_path):
    one = written(tmp_path / "one.jsonl", "nothing\n")
    two = written(tmp_path / "two.csv", "prompt,completion\nonly\n")
    args = TokeniseArgs(base=InputPath("base"), base_files=(), sources=(source(one), source(two)))
    with pytest.raises(StageInputError) as caught:
        look_through(args)
    assert caught.value.message.split("\n")[0] == "2 invalid lines in 2 files:"
    assert "\none.jsonl:1: invalid JSON" in caught.value.message
    assert "\ntwo.csv:2: it has 1 value;" in caught.value.message


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_before_texts_are_read(tmp_path):
    base = bundled_base("tiny")
    args = TokeniseArgs(
        base=InputPath(str(base)),
        base_files=(),
        base_name="tiny",
        vocabulary=200,
        sources=(source(tmp_path / "gone.jsonl"),),
    )
    with pytest.raises(StageInputError, match=r"tokenizer of tiny has 256 tokens; the model's vocabulary has 200"):
        look_through(args)
    added = written(tmp_path / "a.jsonl", '{"text": "a"}\n')
    look_through(replace(args, vocabulary=256, sources=(source(added),)))


def test_sources_in_a_list_are_checked_all_at_once(tmp_path):
    good = written(tmp_path / "good.jsonl", '{"text": "x"}\n')
    listed = [str(good), "gone.jsonl", {"path": str(good), "columns": {"txt": "a"}}, "summs"]
    told = faults_of(data=listed, columns={"prompt": "q"})
    assert set(told) == {"data.1", "data.2.columns.txt", "data.3", "columns"}
    assert "did you mean 'text'?" in told["data.2.columns.txt"]
    assert "prompt are not the parts of one example" in told["columns"]
    plan = compiled("lora", data=["sums", {"path": str(good), "weight": 2}])
    sources = plan.node("tokenise").args["sources"]
    assert [(one["bundled"], one["weight"]) for one in sources] == [("sums", 1.0), ("", 2.0)]


def test_a_file_by_itself_keeps_the_arguments_that_it_always_had(tmp_path):
    good = written(tmp_path / "good.jsonl", '{"text": "x"}\n')
    node = compiled("lora", data=str(good)).node("tokenise")
    assert set(node.stage.args.identity(node.args, lambda path: "x")) == {
        *("base_files", "file", "bundled", "layout", "max_seq_len", "vocabulary", "train_on", "holdout_percent")
    }


# Large files, and what tokenising takes.

MEASURED = """
import sys
from pathlib import Path
from stoker.authoring import InputPath, StageContext
from stoker.cookbooks.language.tokenise import TokeniseArgs, tokenise
from stoker.engine.recipe import MachineContext, surrounded_by
from stoker.engine.stage import perform
from stoker.transfer.hub.hub_cache import HubCache
from stoker.transfer.hub.listing import Repo, RepoFile

base, out, *files = sys.argv[1:]
peaks = []
for number, file in enumerate(files):
    Path("/proc/self/clear_refs").write_text("5")
    folder = Path(out, str(number))
    folder.mkdir()
    job = StageContext(node="tokenise", out=str(folder), emit=lambda _: None, is_cancelled=lambda: False)
    perform(tokenise, job, {}, TokeniseArgs(base=InputPath(base), base_files=(), file=InputPath(file)))
    lines = Path("/proc/self/status").read_text().splitlines()
    peaks.append(next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")))
print(*peaks, "transformers" in sys.modules)
"""


def peaks_mib(folder: Path, *sizes_mib: float) -> tuple[list[int], str]:
    """Return the peak memory of tokenising files of these sizes, after each other, and if transformers was imported."""
    line = json.dumps({"prompt": "word " * 100, "completion": "more words " * 20}) + "\n"
    files = [written(folder / f"{size}.jsonl", line * int(size * (1 << 20) / len(line))) for size in sizes_mib]
    words = [sys.executable, "-c", MEASURED, str(bundled_base("tiny")), str(folder), *map(str, files)]
    *peaks, is_whole = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return list(map(int, peaks)), is_whole


def test_memory_does_not_grow_with_a_file_and_transformers_is_not_imported_for_it(tmp_path):
    peaks, is_whole = peaks_mib(tmp_path, 1, 4)
    # Kept in memory, the tokens of the larger one would take some 40 MiB more.
    assert peaks[1] - peaks[0] < 24, peaks
    assert is_whole == "False"


@pytest.mark.slow
def test_memory_does_not_grow_with_a_large_file(tmp_path):
    peaks, _ = peaks_mib(tmp_path, 8, 100)
    assert peaks[1] - peaks[0] < 40, peaks


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bos_token": "<begin>"},
        {"sep_token": "a"},
        {"add_bos_token": True, "bos_token": "<|im_start|>"},
        {"added_tokens_decoder": {"257": {"content": "<|im_start|>", "lstrip": True}}},
        # It imports what `AutoTokenizer` imports.
        pytest.param({"tokenizer_class": "Qwen2Tokenizer"}, marks=pytest.mark.slow),
    ],
)
def test_a_tokenizer_is_opened_without_transformers_only_if_its_tokens_are_the_same(tmp_path, changes):
    from stoker.cookbooks.language.quick_tokenizer import QuickTokenizer, quick_tokenizer
    from stoker.cookbooks.language.tokens import open_tokenizer

    folder = write_base(tmp_path / "base")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    quick, whole = quick_tokenizer(folder), open_tokenizer(folder)
    assert isinstance(quick, QuickTokenizer) is not bool(changes)
    for text in ("a <|im_start|> b <|im_end|>", "<begin>é🦊\n\n x"):
        ours, theirs = (one.backend_tokenizer.encode(text) for one in (quick, whole))
        assert (ours.ids, ours.offsets) == (theirs.ids, theirs.offsets)
    assert (quick.eos_token_id, quick.pad_token_id) == (whole.eos_token_id, whole.pad_token_id)


def test_stars_of_a_card_take_no_time(tmp_path: Path) -> None:
    written(tmp_path / f"{'a' * 200}.jsonl", '{"text": "x"}\n')
    for pattern, words in (("*a" * 15 + "b", "no files of examples"), ("*a" * 40, "too many patterns")):
        card = f"---\nconfigs:\n- config_name: one\n  data_files: '{pattern}'\n---\n"
        written(tmp_path / "README.md", card)
        assert words in faults_of(data=str(tmp_path))["data"]


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("data/*.jsonl", "data/a.jsonl", True),
        ("data/*.jsonl", "data/b/a.jsonl", False),
        ("**/*.jsonl", "a.jsonl", True),
        ("**/*.jsonl", "b/c/a.jsonl", True),
        ("data/**", "data/b/a.jsonl", True),
        ("a**b*.csv", "a/b/bx.csv", True),
        ("a**b*.csv", "a/b/x/c.csv", False),
        ("train-?.csv", "train-1.csv", True),
        ("train-?.csv", "train-/.csv", False),
        ("[a].csv", "a.csv", False),
    ],
)
def test_patterns_of_a_card_mean_what_they_mean_on_the_hub(pattern: str, path: str, *, fits: bool) -> None:
    card = f"---\nconfigs:\n- config_name: one\n  data_files:\n  - '{pattern}'\n---\n"
    if fits:
        assert chosen_files([path], card, subset="", split="").files == (path,)
    else:
        with pytest.raises(BadInput, match="no files of examples"):
            chosen_files([path], card, subset="", split="")


def test_a_pipe_instead_of_a_card_does_not_block(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", '{"text": "x"}\n')
    os.mkfifo(tmp_path / "README.md")
    assert compiled("lora", data=str(tmp_path)).node("tokenise").args


def test_equal_conversations_that_are_stored_once_are_counted_as_often_as_they_are_there(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x" * 1_000_000}]
    path = parquet(tmp_path / "a.parquet", {"messages": [turns] * 80})
    assert path.stat().st_size < 1_000_000
    assert "unpacks to more than 64.0 MiB" in refused(path)


def _turns(count: int, content: str) -> Any:
    """Return a conversation with one text any number of times, which takes the memory of one."""
    once = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()).take(pa.array([0] * count)), pa.array([content]))
    roles = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()).take(pa.array([0] * count)), pa.array(["user"]))
    turns = pa.StructArray.from_arrays([roles, once], ["role", "content"])
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), turns)


@pytest.mark.parametrize("has_schema", [False, True])
@pytest.mark.parametrize(
    "columns",
    [
        {"messages": (2000, "x" * 1_000_000)},
        {"messages": (3_000_000, "x")},
        {"text": 3_000_000},
    ],
)
def test_values_that_are_stored_once_or_not_at_all_take_little_memory(
    tmp_path: Path, columns: dict[str, Any], *, has_schema: bool
) -> None:
    path = tmp_path / "a.parquet"
    made = {
        name: pa.nulls(what, pa.string()) if isinstance(what, int) else _turns(*what) for name, what in columns.items()
    }
    pq.write_table(pa.table(made), path, compression="zstd", store_schema=has_schema)
    assert path.stat().st_size < 20_000
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from stoker.authoring import StageInputError\n"
        "from stoker.cookbooks.language.reading import InvalidLines, read_lines\n"
        "import pyarrow.compute, pyarrow.parquet\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    list(read_lines(Path(sys.argv[1]), 'parquet', InvalidLines('a'), {}))\n"
        "except StageInputError as error:\n    assert 'unpacks to more than 64.0 MiB' in str(error), error\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150


def test_values_of_any_type_beside_the_texts_of_a_conversation_are_read(tmp_path: Path) -> None:
    turn = [
        ("role", pa.string()),
        ("content", pa.string()),
        ("names", pa.map_(pa.string(), pa.string())),
        ("number", pa.dictionary(pa.int32(), pa.int64())),
        ("calls", pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string(), 2))]))),
    ]
    full = {"role": "user", "content": "a", "names": [("a", "b")], "number": 7, "calls": [{"a": 1, "b": ["x", "y"]}]}
    empty = {"role": "assistant", "content": "b", "names": None, "number": None, "calls": None}
    path = parquet(tmp_path / "a.parquet", {"messages": pa.array([[full, empty]] * 3, pa.list_(pa.struct(turn)))})
    assert [[one.content for one in row.messages] for row in read(path)] == [["a", "b"]] * 3


def test_a_row_of_any_number_of_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_LONGEST_ROW", 1000)
    path = written(tmp_path / "a.csv", "text,n\n" + '"a\n",' * 1000 + "\n")
    assert "longer than" in refused(path)


def test_weights_that_draw_nothing_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n')
    with pytest.raises(StageInputError, match="the weights of all sources draw no example"):
        tokenised(tmp_path / "out", source(path, weight=1e-300))


def test_names_of_columns_are_shown_as_text(tmp_path: Path) -> None:
    message = refused(written(tmp_path / "a.csv", f"\x1b[2J{'y' * 5000},b\n1,2\n"))
    assert "\x1b" not in message
    assert len(message) < 500
