"""References: what they take, how they fail, and that they always end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config.interpolation import LONGEST_CHAIN, Reference, TemplateCall, literal, parse
from stoker.config.values import refers, text_of
from stoker.core.digests import digest_value
from tests.unit.config.composing import FREE, Desk, closed, real, reals, text, texts, whole


def test_a_whole_value_takes_the_others_type(desk: Desk):
    desk.write(config="a: 3\nb: ${a}\nc: [1, 2]\nd: ${c}\ne: {x: 1}\nf: ${e}\n")
    assert desk.values() == {"a": 3, "b": 3, "c": [1, 2], "d": [1, 2], "e": {"x": 1}, "f": {"x": 1}}


@pytest.mark.parametrize(
    ("value", "made"),
    [("3", "-3-"), ("1e-5", "-1e-05-"), ("true", "-true-"), ("null", "-null-"), ("'on'", "-on-"), (".inf", "-inf-")],
)
def test_inside_text_a_value_is_written_as_text(desk: Desk, value: str, made: str):
    desk.write(config=f"a: {value}\nb: -${{a}}-\n")
    assert desk.values()["b"] == made


@pytest.mark.parametrize(
    ("written", "made"),
    [
        (r"\${a}", "${a}"), (r"x\${a}${a}", "x${a}3"), (r"\\${a}", "\\3"), (r"\\\${a}", "\\${a}"), (r"a\b", r"a\b"),
        (r"\\", r"\\"), ("$a {a}", "$a {a}"), ("${ a }", 3), ("${a}${a}", "33"),
    ],
)  # fmt: skip
def test_escapes_and_neighbours(desk: Desk, written: str, made: object):
    desk.write(config=f"a: 3\nb: '{written}'\n")
    assert desk.values()["b"] == made


@given(st.text("${}\\a:.'\"[],= \n"))
@settings(max_examples=300)
def test_a_literal_is_resolved_to_itself(text: str):
    assert "".join(map(str, parse(literal(text)))) == text
    assert literal([{"a": (text, 1)}]) == [{"a": [literal(text), 1]}]


def test_a_literal_stays_what_it_is_in_an_override(desk: Desk):
    text = "${a} \\${b:c} {d} 'e' \"f\""
    desk.write(config="a: 3\nb: [x]\n")
    assert desk.values(f"b={text_of(literal([text]))}")["b"] == [text]


def test_items_of_lists_and_maps_are_resolved(desk: Desk):
    desk.write(config="a: 3\nb: ['${a}', {c: 'x${a}', d: ['${a}']}]\n")
    assert desk.values()["b"] == [3, {"c": "x3", "d": [3]}]


def test_a_reference_may_lead_into_a_list_and_through_other_references(desk: Desk):
    desk.write(config="a: [{x: 1}, {x: 2}]\nb: ${a[1].x}\nc: ${a.0.x}\nd: ${e}\ne: ${a}\nf: ${d[0].x}\n")
    values = desk.values()
    assert (values["b"], values["c"], values["d"][1], values["f"]) == (2, 1, {"x": 2}, 1)


def test_a_branch_is_taken_with_what_refers_in_it(desk: Desk):
    desk.write(config="n: 1\na: {x: '${n}', y: {z: 'z${n}'}}\nb: ${a}\nc: ${a.y}\n")
    values = desk.values()
    assert values["b"] == {"x": 1, "y": {"z": "z1"}}
    assert values["c"] == {"z": "z1"}


def test_references_are_resolved_after_all_layers(desk: Desk):
    desk.write(config="a: 1\nb: ${a}\n", second="a: 2\n")
    assert desk.values(files=["config.yaml", "second.yaml"], env={"STOKER__a": "3"})["b"] == 3
    assert desk.values("a=4", "b=x${a}")["b"] == "x4"


def test_the_declared_type_reads_what_references_make(desk: Desk):
    schema = closed(lr=real(1.0), base=whole(2), name=text("n"), tags=texts([]), opts=reals({}))
    desk.write(config="lr: ${base}e-3\nname: run-${base}\ntags: ['t${base}']\nopts: {a: '${lr}'}\n")
    values = desk.values(schema=schema)
    assert values == {"lr": 2e-3, "base": 2, "name": "run-2", "tags": ["t2"], "opts": {"a": 2e-3}}


def test_what_references_make_is_checked(desk: Desk):
    desk.write(config="lr: ${name}\n")
    fault = desk.fault(schema=closed(lr=real(1.0), name=text("fast")))
    assert fault.where == "config.yaml:1:5: lr"
    assert "${name}" in fault.message


def test_a_reference_to_nothing_brings_the_nearest_path(desk: Desk):
    desk.write(config="model: {depth: 3}\na: x${modle.depth}\nb: ${depth}\n")
    first, second = desk.faults()
    assert first.where == "config.yaml:2:4: a"
    assert "'model.depth'" in first.hint
    assert "'model.depth'" in second.hint


def test_a_circle_names_every_step_and_is_told_once(desk: Desk):
    desk.write(config="a: ${b}\nb: x${c.d}\nc: {d: '${a}'}\nother: ${a}\n")
    fault = desk.fault()
    assert fault.message == "references form a cycle: a → b → c.d → a"
    assert fault.where == "config.yaml:1:4: a"


@pytest.mark.parametrize("line", ["a: ${a}", "a: {b: '${a}'}", "a: ['${a}']", "a: {b: '${a.b}'}"])
def test_a_value_inside_itself_is_a_circle(desk: Desk, line: str):
    desk.write(config=f"{line}\n")
    assert "cycle" in desk.fault().message


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("${a", "not closed"), ("${}", "not a reference"), ("${a b}", "not a reference"), ("${.a}", "relative"),
        ("${oc.env:X}", "did you mean 'env'"), ("${now:%H}", "unknown reference"), ("${a..b}", "not a reference"),
        ("${" * 20 + "a" + "}" * 20, "not a reference"), ("${path:" * 20 + "a" + "}" * 20, "deep"),
        ("${env:}", "name of the variable is missing"), ("${env:${a}}", "not a reference"),
    ],
)  # fmt: skip
def test_a_reference_that_is_none_is_a_fault(desk: Desk, written: str, says: str):
    desk.write(config=f"a: 3\nb: '{written}'\n")
    fault = desk.fault()
    assert fault.where == "config.yaml:2:4: b"
    assert says in fault.message


@pytest.mark.parametrize("whole", ["{x: 1}", "[1]"])
def test_a_map_or_a_list_does_not_fit_into_text(desk: Desk, whole: str):
    desk.write(config=f"a: {whole}\nb: x${{a}}\n")
    assert "can't be put into text" in desk.fault().message


def test_the_environment_is_asked_by_name_and_only_a_digest_is_kept(desk: Desk):
    desk.write(config="a: ${env:USER}\nb: x-${env:NONE,some, default}\nc: ${a}!\nd: 1\n")
    composed = desk.compose(env={"USER": "secret"})
    assert composed.values == {"a": "secret", "b": "x-some, default", "c": "secret!", "d": 1}
    assert composed.read_from_environment == {"USER": digest_value("environment", b"secret")}
    assert composed.environment_leaves == {"a", "b", "c"}


def test_a_default_may_itself_refer(desk: Desk):
    desk.write(config="a: 3\nb: ${env:NONE,${a}}\nc: ${env:NONE,}\n")
    values = desk.values()
    assert (values["b"], values["c"]) == ("3", "")


def test_a_variable_is_text_unless_a_type_reads_it_and_is_not_looked_into(desk: Desk):
    desk.write(config="a: ${env:N}\n")
    assert desk.values(env={"N": "3"})["a"] == "3"
    assert desk.values(env={"N": "${a}"})["a"] == "${a}"
    assert desk.values(schema=closed(a=whole(1)), env={"N": "3"})["a"] == 3
    desk.write(config="a: ${env:N}.5\n")
    assert desk.fault(schema=closed(a=whole(1)), env={"N": "3"}).where == "config.yaml:1:4: a"


def test_a_variable_that_is_not_set_is_a_fault_that_offers_a_default(desk: Desk):
    desk.write(config="a: ${env:NOWHERE}\n")
    fault = desk.fault()
    assert fault.message == "the environment has no NOWHERE"
    assert fault.hint == "set it, or write ${env:NOWHERE,DEFAULT}"


def test_a_path_is_relative_to_the_file_that_says_it(desk: Desk):
    desk.write(conf__config="a: ${path:data/x.csv}\nb: ${path:../y}\nd: in\ne: ${path:${d}/z}\nf: ${path:/abs}\n")
    values = desk.values("+c=${path:w}", files=["conf/config.yaml"])
    folder = desk.folder
    assert values["a"] == str(folder / "conf/data/x.csv")
    assert values["b"] == str(folder / "y")
    assert values["c"] == str(folder / "w")
    assert values["e"] == str(folder / "conf/in/z")
    assert values["f"] == "/abs"


def test_a_home_folder_is_not_guessed(desk: Desk):
    desk.write(config="a: ${path:~/x}\n")
    assert "${env:HOME}" in desk.fault().hint


def test_text_that_doubles_with_each_reference_is_bounded(desk: Desk):
    desk.write(config="a0: xxxxxxxx\n" + "".join(f"a{n}: '${{a{n - 1}}}${{a{n - 1}}}'\n" for n in range(1, 40)))
    assert "characters" in desk.faults()[0].message


def test_maps_that_double_with_each_reference_are_bounded(desk: Desk):
    lines = [f"a{n}: {{x: '${{a{n - 1}}}', y: '${{a{n - 1}}}'}}\n" for n in range(1, 40)]
    desk.write(config="a0: {x: 1}\n" + "".join(lines))
    assert "values" in desk.faults()[0].message


def test_a_chain_of_references_is_bounded(desk: Desk):
    count = LONGEST_CHAIN + 10
    desk.write(config="".join(f"a{n}: ${{a{n + 1}}}\n" for n in range(count)) + f"a{count}: 1\n")
    assert "a chain of more than" in desk.faults()[0].message


def test_nesting_by_references_is_bounded(desk: Desk):
    lines = [f"a{n}: {{x: '${{a{n - 1}}}'}}\n" for n in range(1, 60)]
    desk.write(config="a0: {x: 1}\n" + "".join(lines))
    assert "deeper" in desk.faults()[0].message


def test_what_failed_once_brings_no_second_fault(desk: Desk):
    desk.write(config="a: ${nowhere}\nb: ${a}\nc: x${b}\n")
    assert desk.fault().where == "config.yaml:1:4: a"


def test_taking_text_apart():
    assert parse("x${a.b[0]}y${env:N,d}") == ("x", Reference(("a", "b", "0")), "y", TemplateCall("env", ("N,d",)))
    assert parse("") == ()
    assert refers({"a": ["x", {"b": "${c}"}]})
    assert not refers({"a": ["x", {"b": "{c}"}]})


def test_an_alias_of_a_text_with_references_is_resolved_in_both_places(desk: Desk):
    desk.write(config="a: 1\nb: &b {x: '${a}'}\nc: *b\n")
    assert desk.values(schema=FREE)["c"] == {"x": 1}
