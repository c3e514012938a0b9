# SPDX-License-Identifier: Apache-2.0
"""Translation units from a table and templates: what is made, and what is refused, word by word."""

from __future__ import annotations

import itertools

import pytest

from patchctl.errors import BuildFailed
from patchctl.formats.instances import Instance, render_instances

WHERE = "csrc/sm70/instances.toml"
TABLE = """\
[[units]]
template = "forward.cu.jinja"
name = "forward_{{ head_dim }}{{ '_paged' if paged }}.cu"
head_dim = [64, 256]
paged = [false, true]
kind = "half"

[[units]]
template = "combine.cu.jinja"
name = "combine.cu"

[[files]]
template = "table.cpp.jinja"
name = "table.cpp"
"""
TEMPLATES = {
    "forward.cu.jinja": b"run<{{ head_dim }}, {{ paged | lower }}, {{ kind }}>();\n",
    "combine.cu.jinja": b"combine();\n\n",
    "table.cpp.jinja": b"{% for unit in units %}{{ unit.name }}:{{ unit.head_dim | default('-') }}:"
    b"{{ unit.template }}\n{% endfor %}",
}
UNIT = '[[units]]\ntemplate = "t.cu.jinja"\nname = "t_{{ x }}.cu"\n'


def made(table: str = TABLE, templates: dict[str, bytes] = TEMPLATES) -> tuple[Instance, ...]:
    return render_instances(table, templates, where=WHERE)


def refused(table: str, template: bytes = b"", **more: bytes) -> BuildFailed:
    templates = {"t.cu.jinja": template, **{f"{k}.jinja": v for k, v in more.items()}}
    with pytest.raises(BuildFailed) as caught:
        made(table, templates)
    assert caught.value.exit_code == 7
    assert caught.value.hint
    assert caught.value.data["file"] == WHERE
    return caught.value


def test_each_combination_of_the_lists_is_one_unit_in_the_order_written() -> None:
    assert {i.name: i.text for i in made()} == {
        "forward_64.cu": "run<64, false, half>();\n",
        "forward_64_paged.cu": "run<64, true, half>();\n",
        "forward_256.cu": "run<256, false, half>();\n",
        "forward_256_paged.cu": "run<256, true, half>();\n",
        "combine.cu": "combine();\n\n",
        "table.cpp": "forward_64.cu:64:forward.cu.jinja\nforward_64_paged.cu:64:forward.cu.jinja\n"
        "forward_256.cu:256:forward.cu.jinja\nforward_256_paged.cu:256:forward.cu.jinja\n"
        "combine.cu:-:combine.cu.jinja\n",
    }
    assert [i.name for i in made()] == list({i.name: i for i in made()})


def test_what_it_was_made_from_is_said_with_its_values() -> None:
    by_name = {i.name: i for i in made()}
    assert by_name["forward_256_paged.cu"].origin == (
        '`forward.cu.jinja` (head_dim = 256, paged = true, kind = "half")'
    )
    assert by_name["combine.cu"].origin == "`combine.cu.jinja`"


def test_the_same_input_gives_the_same_bytes_whatever_the_order_of_the_folder() -> None:
    for names in itertools.permutations(TEMPLATES):
        assert made(templates={name: TEMPLATES[name] for name in names}) == made()


def test_templates_share_macros_and_text_is_not_escaped() -> None:
    templates = {
        "t.cu.jinja": b"{% from 'm.jinja' import call %}{{ call('a<b>' ~ x) }}",
        "m.jinja": b"{% macro call(what) %}f({{ what }} && 1);{% endmacro %}",
    }
    (unit,) = made(UNIT + "x = 3", templates)
    assert unit.text == "f(a<b>3 && 1);"


def test_an_empty_table_gives_nothing() -> None:
    assert made("") == ()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[[unit]]", "at `top level`: unknown key `unit`; did you mean `units`?"),
        ("x = ", "is not valid TOML: Invalid value (at end of document)"),
        (
            '[[files]]\ntemplate = "t.cu.jinja"\nname = "a.cu"\nsize = 1',
            "at `files[0]`: unknown key `size` (known: template, name)",
        ),
        ('[[units]]\nname = "a.cu"', "at `units[0]`: `template` must be a string, there is none"),
        (
            '[[units]]\ntemplate = "t.cu.jinja"\nname = ["a.cu"]',
            "at `units[0]`: `name` must be a string, got a list",
        ),
        (UNIT + "x = []", "at `units[0]`: `x` is an empty list: it gives no unit"),
        (
            UNIT + "x = [1, 1.5]",
            "at `units[0]`: `x[1]` must be an integer, a string or a boolean, got a float",
        ),
        (
            UNIT + "x = {a = 1}",
            "at `units[0]`: `x` must be an integer, a string or a boolean, got a table",
        ),
        (
            UNIT + "x = 2020-02-02",
            "at `units[0]`: `x` must be an integer, a string or a boolean, got a date or time",
        ),
        (
            UNIT + '"a-b" = 1',
            "at `units[0]`: `a-b` is no name of a variable: letters, digits and `_`",
        ),
        (
            UNIT + 'x = "a/b"',
            "at `units[0].name`: `t_a/b.cu` is no plain file name: letters, digits, `_`, `-`, `+`, "
            "`.`",
        ),
        (
            UNIT.replace('.cu"\n', '.h"\n') + "x = 1",
            "at `units[0].name`: `t_1.h` ends in neither `.cu` nor `.cpp`",
        ),
        (UNIT + "y = 1", "at `units[0].name`: `x` is undefined"),
        (UNIT.replace("{{ x }}", "{{") + "y = 1", "at `units[0].name`: unexpected `.`"),
    ],
)
def test_a_wrong_table_names_its_place(table: str, said: str) -> None:
    place = f"`{WHERE}` "
    assert refused(table).message == place + said


def test_a_template_that_is_not_there_names_those_that_are() -> None:
    error = refused(UNIT.replace("t.cu.jinja", "u.cu.jinja") + "x = 1")
    assert error.message == (
        f"`{WHERE}` at `units[0].template`: there is no template `u.cu.jinja` beside the table "
        "(there: `t.cu.jinja`)"
    )
    assert error.hint == "did you mean `t.cu.jinja`?"


@pytest.mark.parametrize(
    ("first", "second"), [(UNIT + "x = [1, 2]\ny = [3, 4]\n", ""), (UNIT + "x = 1\n",) * 2]
)
def test_two_units_of_one_name_are_refused_with_both_rows(first: str, second: str) -> None:
    error = refused(first + second, b"{{ x }}")
    assert "the name `t_1.cu` is taken: `t.cu.jinja` (x = 1" in error.message
    assert error.message.count("by `units[") == 2
    assert error.data["unit"] == "t_1.cu"


@pytest.mark.parametrize(
    ("template", "said", "hint"),
    [
        (b"\n\n{{ xx }}", "line 3: `xx` is undefined", "did you mean `x`?"),
        (b"{{ units }}", "line 1: `units` is undefined", "it sees `x`"),
        (b"\n{% if x %}", "line 2: unexpected end of template", ""),
        (b"\n{{ x / 0 }}\n\n", "line 2: ZeroDivisionError: division by zero", ""),
        (b"\n{{ x.y }}", "line 2: `int object` has no attribute `y`", ""),
        (b"a\n{{ x | nothing }}", "line 2: no filter named `nothing`", ""),
        (
            b"\n{% include 'no.jinja' %}",
            "line 2: there is no template `no.jinja` beside the table",
            "",
        ),
        (b"\n\n{{ ''.__class__.__mro__ }}", "line 3: access to attribute `__class__`", ""),
        (b"\n\xff", "line 2: not UTF-8", ""),
        (b"\n{{ [1, 2] | random }}", "line 2: no filter named `random`", ""),
    ],
)
def test_a_wrong_template_names_file_and_line_and_unit(
    template: bytes, said: str, hint: str
) -> None:
    error = refused(UNIT + "x = 7", template)
    assert error.message.lower().startswith(f"`csrc/sm70/t.cu.jinja`, {said}".lower())
    assert error.message.endswith(", for `t_7.cu` (x = 7)")
    assert error.data["unit"] == "t_7.cu"
    assert hint in error.hint


def test_an_error_in_an_included_template_names_that_one() -> None:
    error = refused(UNIT + "x = 7", b"{% include 'part.jinja' %}", part=b"\n\n\n{{ z }}")
    assert error.message.startswith("`csrc/sm70/part.jinja`, line 4: `z` is undefined")
