from __future__ import annotations

import pytest

from stoker.cli.grammar import Grammar, Option, Positional, duration, size, size_with_unit, whole
from stoker.cli.run import GRAMMAR as RUN
from stoker.core.errors import Usage

GRAMMAR = Grammar(
    "store",
    about="Do something.",
    positionals=(
        Positional("NAME", help="what to do it to"),
        Positional("key=value", key="values", help="how", is_many=True, is_required=False),
    ),
    options=(
        Option("--dry-run", help="only say so"),
        Option("-j", "--jobs", value="N", read=whole(1), help="how many at once"),
        Option("--rerun", value="STAGE", is_many=True, help="again"),
        Option("--max-size", value="SIZE", read=size, help="at most"),
        Option("--timeout", value="TIME", read=duration, help="at longest"),
    ),
    examples=("stoker store x",),
)


def test_options_stand_anywhere_and_take_values_in_every_common_way() -> None:
    for words in (["--jobs", "4"], ["--jobs=4"], ["-j", "4"], ["-j4"], ["-j=4"]):
        assert GRAMMAR.parse(["a", *words, "x=1"])["jobs"] == 4
    given = GRAMMAR.parse(["a", "x=1", "--rerun", "b", "--dry-run", "--rerun", "c", "y=2", "--timeout", "2h"])
    assert given == {
        "name": "a",
        "values": ["x=1", "y=2"],
        "dry_run": True,
        "jobs": None,
        "rerun": ["b", "c"],
        "max_size": None,
        "timeout": 7200.0,
    }


def test_behind_two_dashes_nothing_is_an_option() -> None:
    assert GRAMMAR.parse(["a", "--", "--dry-run"])["values"] == ["--dry-run"]


def test_every_fault_is_reported_together() -> None:
    with pytest.raises(Usage) as caught:
        GRAMMAR.parse(["--dry-rnu", "--jobs", "none", "--max-size", "big", "--dry-run=yes", "--timeout"])
    told = str(caught.value).split("; ")
    assert len(told) == 7  # a size's and a duration's own text holds a semicolon or two
    assert "unknown option '--dry-rnu'" in str(caught.value)
    assert "--jobs: 'none' is not a whole number of at least 1" in str(caught.value)
    assert "--dry-run takes no value" in str(caught.value)
    assert "--timeout needs a value (TIME)" in str(caught.value)
    assert "NAME is missing: what to do it to" in str(caught.value)
    assert caught.value.hint == "did you mean '--dry-run'?"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--lr", "0.1"], "write a setting as lr=0.1 before --; the program's own options go after --"),
        (["--lr=0.1"], "write a setting as lr=0.1 before --; the program's own options go after --"),
        (["-lr", "0.1"], "write a setting as lr=0.1 before --; the program's own options go after --"),
        (["--seed"], "write a setting as seed=VALUE before --; the program's own options go after --"),
        (["--memry", "8G"], "write a setting as memory=8G before --; the program's own options go after --"),
        (["--rern", "train"], "did you mean '--rerun'?"),
        (["--dry"], "did you mean '--dry-run'?"),
    ],
)
def test_a_setting_written_as_an_option_is_shown_as_a_setting(words: list[str], hint: str) -> None:
    with pytest.raises(Usage, match=r"unknown option '--?\w+'$") as caught:
        RUN.parse([*words, "--", "python", "train.py"])
    assert caught.value.hint == hint


def test_help_of_run_lists_the_settings_of_a_program_and_the_exit_codes() -> None:
    lines = RUN.help().splitlines()
    for key in ("outputs=", "memory=", "vram=", "shares="):
        assert any(line.startswith(f"  {key} ") for line in lines), key
    assert not any(line.startswith(("  argv=", "  machine_cpus=")) for line in lines)
    codes = lines[lines.index("exit codes") + 1 :]
    assert [line.split()[0] for line in codes[:3]] == ["0", "1", "2"]


def test_a_word_too_many_is_taken_for_a_misspelt_verb_where_there_are_verbs() -> None:
    with pytest.raises(Usage, match="unknown command 'purne'") as caught:
        Grammar("store", about="", examples=()).parse(["purne"])
    assert caught.value.hint == "did you mean 'prune'?"
    with pytest.raises(Usage, match="unexpected argument 'x'"):
        Grammar("status", about="", examples=()).parse(["x"])


def test_the_help_names_everything_that_can_be_given() -> None:
    told = GRAMMAR.help()
    assert told.startswith("usage: stoker store NAME [key=value …] [options]\n")
    for option in GRAMMAR.options:
        assert option.label in told
    assert "store prune" in told
    assert "--json" in told
    assert max(map(len, told.splitlines())) <= 100


def test_a_few_bytes_of_device_memory_were_meant_to_have_a_unit() -> None:
    assert size_with_unit("6GiB") == 6 * 1024**3
    assert size_with_unit("4079222784") == 4079222784
    for text in ("6", " 6.5 "):
        with pytest.raises(ValueError, match=r"has no unit; write 6(\.5)?GiB"):
            size_with_unit(text)


def test_help_lists_the_keys_of_key_value_words_one_by_one() -> None:
    keys = {"batch": "how many", "rank": "of adapters"}
    words = Positional("KEY=VALUE", help="by the keys below", is_many=True, keys=keys)
    grammar = Grammar("x", about="Do.", positionals=(words,), examples=("stoker x",))
    assert "\nkeys\n  batch        how many\n  rank         of adapters\n" in grammar.help()


def test_a_whole_number_of_thousands_of_digits_is_refused_in_our_own_words() -> None:
    with pytest.raises(ValueError, match="a whole number of 5000 digits is too large"):
        whole(1)("9" * 5000)
    with pytest.raises(ValueError, match="is not a whole number of at least 1"):
        whole(1)("0")
