# SPDX-License-Identifier: Apache-2.0
"""Translation units made from a table and templates: one for every combination of a row's lists.

The table (TOML) has rows of two kinds. ``[[units]]`` names a template, the unit's file name (a
template too) and the values that both see; a value that is a list stands for one unit each, and
several lists for all combinations, the last varying fastest. ``[[files]]`` names a template that
sees them all, as ``units``.
"""

from __future__ import annotations

import itertools
import json
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchctl.errors import BuildFailed, UsageError
from patchctl.formats.documents import Document, read_toml
from patchctl.formats.wording import did_you_mean

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

KERNEL_SUFFIX = ".cu"
HOST_SUFFIX = ".cpp"
GENERATED_FOLDER = "generated"
"""Where generated units are, in the build folder; a unit's name begins with it."""
TEMPLATE_SUFFIX = ".jinja"

Value = int | str | bool
Values = dict[str, Value]

_MEND = "mend it in its patch (`patchctl edit PATCH`), then `patchctl build`"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Instance:
    """One generated file: what `template` gave for `values`, which are empty for a file that
    sees all units. `row` is its place in the table (``units[0]``)."""

    name: str
    text: str
    template: str
    row: str
    values: Values

    @property
    def origin(self) -> str:
        """What it was made from, in words."""
        return f"`{self.template}`{_said(self.values)}"


class File(Document, frozen=True):
    """A row of ``[[files]]``."""

    template: str
    name: str


class _Table(Document, frozen=True):
    units: tuple[dict[str, Any], ...] = ()
    files: tuple[File, ...] = ()


def render_instances(
    table: str | bytes, templates: Mapping[str, bytes], *, where: str
) -> tuple[Instance, ...]:
    """Every file that the table `where` asks for, in its order; units come first.

    `templates` are the files beside the table by their names. The same input gives the same
    bytes: nothing in a template can reach a clock, a random number or a file.

    Raises:
        BuildFailed: the table or a template is wrong; names the file, and the key or the line.
    """
    try:
        rows = read_toml(table, _Table, where=where)
    except UsageError as error:
        raise _failure(error.message, file=where) from error
    renderer = _Renderer(where, templates)
    made: list[Instance] = []
    for index, row in enumerate(rows.units):
        place = f"units[{index}]"
        template, name, lists = _unit_row(row, f"`{where}` at `{place}`", where)
        for combination in itertools.product(*lists.values()):
            values = dict(zip(lists, combination, strict=True))
            made.append(renderer.instance(place, template, name, values, values))
    units = [{"template": i.template, "name": i.name, **i.values} for i in made]
    for index, file in enumerate(rows.files):
        context = {"units": units}
        made.append(renderer.instance(f"files[{index}]", file.template, file.name, {}, context))
    require_distinct([(where, instance) for instance in made])
    return tuple(made)


def is_generated(unit: str) -> bool:
    """Whether a translation unit of that name is the build's, not the tree's."""
    return unit.startswith(f"{GENERATED_FOLDER}/")


def require_distinct(made: Sequence[tuple[str, Instance]]) -> None:
    """See that no two files, each with its table, have one name.

    Raises:
        BuildFailed: names both rows.
    """
    seen: dict[str, tuple[str, Instance]] = {}
    for where, instance in made:
        first = seen.setdefault(instance.name, (where, instance))
        if first[1] is not instance:
            raise _failure(
                f"`{where}` at `{instance.row}`: the name `{instance.name}` is taken: "
                f"{_made_by(*first)}, and {_made_by(where, instance)}",
                "let `name` hold every key whose value is a list",
                file=where,
                unit=instance.name,
            )


def _made_by(where: str, instance: Instance) -> str:
    return f"{instance.origin} by `{instance.row}` of `{where}`"


def _said(values: Values) -> str:
    said = ", ".join(f"{key} = {_toml(value)}" for key, value in values.items())
    return f" ({said})" if said else ""


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else str(value)


def _failure(message: str, hint: str = "", *, file: str, unit: str = "") -> BuildFailed:
    data: dict[str, object] = {"unit": unit or file, "file": file}
    return BuildFailed(message, hint=hint or _MEND, data=data)


def _unit_row(
    row: dict[str, Any], place: str, where: str
) -> tuple[str, str, dict[str, list[Value]]]:
    """A row of ``[[units]]``: template, name, and for each other key what it can be."""
    for key in ("template", "name"):
        if not isinstance(row.get(key), str):
            got = f"got {_kind_of(row[key])}" if key in row else "there is none"
            raise _failure(f"{place}: `{key}` must be a string, {got}", file=where)
    lists = {}
    for key, value in row.items():
        if key in ("template", "name"):
            continue
        if not _VARIABLE.fullmatch(key):
            text = f"{place}: `{key}` is no name of a variable: letters, digits and `_`"
            raise _failure(text, file=where)
        items = value if isinstance(value, list) else [value]
        if not items:
            raise _failure(f"{place}: `{key}` is an empty list: it gives no unit", file=where)
        for position, item in enumerate(items):
            # a list, a table, a time; or a float, whose text is not what was written
            if not isinstance(item, Value):
                at = f"{key}[{position}]" if isinstance(value, list) else key
                raise _failure(
                    f"{place}: `{at}` must be an integer, a string or a boolean, "
                    f"got {_kind_of(item)}",
                    file=where,
                )
        lists[key] = items
    return row["template"], row["name"], lists


def _kind_of(value: object) -> str:
    names: dict[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a float",
        str: "a string",
        list: "a list",
        dict: "a table",
    }
    return names.get(type(value), "a date or time")


class _Renderer:
    """Jinja over the templates beside one table."""

    def __init__(self, where: str, templates: Mapping[str, bytes]) -> None:
        self._where = where
        self._folder = where[: where.rfind("/") + 1]
        self._templates = templates
        self._environment = _environment(self._source)

    def instance(
        self, row: str, template: str, name: str, values: Values, context: Mapping[str, object]
    ) -> Instance:
        """One file of the row `row`."""
        place = f"`{self._where}` at `{row}"
        if template not in self._templates:
            near = did_you_mean(template, list(self._templates))
            known = ", ".join(f"`{known}`" for known in sorted(self._templates)) or "none"
            raise _failure(
                f"{place}.template`: there is no template `{template}` beside the table "
                f"(there: {known})",
                near,
                file=self._where,
            )
        shown = self._name(f"{place}.name`", name, context)
        text = self._render(template, context, f", for `{shown}`{_said(values)}", shown)
        return Instance(shown, text, template, row, values)

    def _name(self, place: str, name: str, context: Mapping[str, object]) -> str:
        try:
            shown = self._environment.from_string(name).render(context)
        except Exception as error:
            raise self._refusal(error, place, context, "", "") from error
        if not _FILE_NAME.fullmatch(shown):
            text = f"{place}: `{shown}` is no plain file name: letters, digits, `_`, `-`, `+`, `.`"
            raise _failure(text, file=self._where, unit=shown)
        if not shown.endswith((KERNEL_SUFFIX, HOST_SUFFIX)):
            text = f"{place}: `{shown}` ends in neither `{KERNEL_SUFFIX}` nor `{HOST_SUFFIX}`"
            hint = f"`{KERNEL_SUFFIX}` is compiled as a kernel, `{HOST_SUFFIX}` as a host source"
            raise _failure(text, hint, file=self._where, unit=shown)
        return shown

    def _render(self, template: str, context: Mapping[str, object], what: str, unit: str) -> str:
        try:
            return self._environment.get_template(template).render(context)
        except Exception as error:  # what a template does can fail in any way
            found, line = _place_of(error, self._templates)
            place = f"`{self._folder}{found or template}`" + (f", line {line}" if line else "")
            raise self._refusal(error, place, context, what, unit) from error

    def _refusal(
        self,
        error: Exception,
        place: str,
        context: Mapping[str, object],
        what: str,
        unit: str,
    ) -> BuildFailed:
        import jinja2

        said = re.sub(r"'([^']*)'", r"`\1`", getattr(error, "message", None) or str(error))
        said = said.rstrip(".")
        if isinstance(error, jinja2.TemplateNotFound):
            said = f"there is no template `{error.name}` beside the table"
        elif not isinstance(error, jinja2.TemplateError):
            said = f"{type(error).__name__}: {said}"
        hint = ""
        undefined = re.fullmatch(r"`(\w+)` is undefined", said)
        if undefined:
            known = ", ".join(f"`{key}`" for key in context) or "no values"
            hint = did_you_mean(undefined[1], list(context)) or f"it sees {known}"
        return _failure(f"{place}: {said}{what}", hint, file=self._where, unit=unit)

    def _source(self, name: str) -> tuple[str, str, None] | None:
        """What Jinja loads; it names the template in a traceback by the second item."""
        import jinja2

        data = self._templates.get(name)
        if data is None:
            return None
        try:
            return data.decode(), name, None
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise jinja2.TemplateSyntaxError("not UTF-8", line, name, name) from None


def _environment(source: Any) -> SandboxedEnvironment:
    from jinja2 import FunctionLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(source),
        undefined=StrictUndefined,
        autoescape=False,  # C++, never HTML
        keep_trailing_newline=True,
    )
    # chance has no place in a build
    environment.filters.pop("random")
    environment.globals.pop("lipsum")
    return environment


def _place_of(error: Exception, templates: Mapping[str, bytes]) -> tuple[str, int]:
    """The template and the line that an error is of, as far as Jinja tells."""
    line = getattr(error, "lineno", None)
    if line is not None:
        return str(getattr(error, "name", None) or ""), int(line)
    frames = traceback.extract_tb(error.__traceback__)
    inner = next((f for f in reversed(frames) if f.filename in templates), None)
    return (inner.filename, inner.lineno or 0) if inner else ("", 0)
