# SPDX-License-Identifier: Apache-2.0
"""``patchctl routes``: which kernel would serve a call, and why not another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from patchctl.cli.app import App, command
from patchctl.cli.render import table


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def routes() -> None:
    """Show the routes of the shim, and what decides about a call."""


@command
def list_(app: App) -> None:
    """List the routes in their order of preference, and their variables."""
    from patchctl.stages.routes import listed

    data = listed()

    def text() -> str:
        rows = [[r["name"], ", ".join(r["operators"]), r["serves"]] for r in data["routes"]]
        lines = [table(("route", "operators", "serves"), rows), ""]
        lines += [f"{name} = {value or '(not set)'}" for name, value in data["variables"].items()]
        return "\n".join(lines)

    app.show("routes list", data, text)


def _pairs(
    convert: Callable[[str], Any],
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, Any]]:
    def read(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
        found = {}
        for pair in given:
            name, sign, value = pair.partition("=")
            try:
                if not (name and sign):
                    raise ValueError
                found[name] = convert(value)
            except ValueError:
                raise click.BadParameter(f"`{pair}` is not {param.metavar}") from None
        return found

    return read


def _capability(ctx: click.Context, param: click.Parameter, given: str) -> tuple[int, int]:
    major, _, minor = given.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise click.BadParameter(f"`{given}` is not MAJOR.MINOR")
    return int(major), int(minor)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


@command
@click.option("--q", type=click.IntRange(0), required=True, help="Rows of q.")
@click.option(
    "--kv", type=click.IntRange(0), required=True, help="Rows of k and v, the new ones included."
)
@click.option("--heads", type=click.IntRange(1), default=6, show_default=True, help="Of queries.")
@click.option("--kv-heads", type=click.IntRange(1), default=1, show_default=True, help="Of keys.")
@click.option("--head-dim", type=click.IntRange(1), default=256, show_default=True)
@click.option("--dtype", default="float16", show_default=True, help="Of q, k, v and out.")
@click.option("--scale", type=float, help="Of scores [default: 1 / sqrt(head dimension)].")
@click.option("--causal/--not-causal", default=True, help="Whether it is [default: causal].")
@click.option("--window", type=(int, int), default=(-1, -1), metavar="LEFT RIGHT")
@click.option("--softcap", type=float, default=0.0)
@click.option("--dropout", type=float, default=0.0)
@click.option("--num-splits", type=int, default=0)
@click.option("--sequences", type=click.IntRange(1), default=1, help="Packed into one call.")
@click.option("--page", type=click.IntRange(1), metavar="ROWS", help="K and V are in pages.")
@click.option("--alibi", is_flag=True, help="Slopes are given.")
@click.option("--out", is_flag=True, help="The caller gives the output.")
@click.option("--capturing", is_flag=True, help="A CUDA graph is being captured.")
@click.option("--traced", is_flag=True, help="torch.compile is tracing.")
@click.option(
    "--function",
    type=click.Choice(["varlen_fwd", "fwd_kvcache"]),
    default="varlen_fwd",
    help="What the caller's function stands for.",
)
@click.option("--capability", default="7.0", callback=_capability, metavar="MAJOR.MINOR")
@click.option(
    "--strides",
    multiple=True,
    callback=_pairs(_numbers),
    metavar="TENSOR=N,N,N",
    help="Strides of q, k, v or out in elements (repeat).",
)
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    callback=_pairs(int),
    metavar="TENSOR=N",
    help="Where a tensor begins in its storage (repeat).",
)
@click.option(
    "--set",
    "variables",
    multiple=True,
    callback=_pairs(str),
    metavar="NAME=VALUE",
    help="A variable, instead of the environment's (repeat).",
)
@click.option("--without", multiple=True, metavar="OPERATOR", help="The library lacks it (repeat).")
@click.option("--expect", metavar="ROUTE", help="Exit with 1 if another route is taken.")
def explain(app: App, expect: str | None, **facts: Any) -> None:
    """Say which route a call takes and every reason against the others.

    The device is a V100 unless --capability says another; a GPU is not needed.

    \b
        patchctl routes explain --q 8000 --kv 128000
        patchctl routes explain --q 8000 --kv 41000 --page 16 --expect dense
    """
    from patchctl.errors import GateFailed
    from patchctl.stages.routes import Question, explained

    data = explained(Question(**facts))
    taken = data["taken"]
    wrong = expect is not None and expect != (taken or "none")
    if not (wrong and app.as_json):
        app.show("routes explain", data, lambda: _as_text(data))
    if wrong:
        raise GateFailed(
            f"the call takes {taken or 'no route'}, expected {expect}",
            data=data,
        )


def _as_text(data: dict[str, Any]) -> str:
    lines = []
    for route in data["routes"]:
        if route["taken"]:
            lines.append(f"{route['name']}: taken ({route['operator']})")
        elif not route["refusals"]:
            lines.append(f"{route['name']}: would serve it, too")
        lines += [f"{route['name']}: {r['reason']} [{r['kind']}]" for r in route["refusals"]]
    if "memory" in data:
        memory = {name: f"{size / 2**20:.1f} MiB" for name, size in data["memory"].items()}
        lines.append(
            f"memory: {memory['retained']} retained, {memory['transient']} a call; the first call "
            f"asks for {memory['first_call_needs']}, {memory['headroom']} of them headroom"
        )
    if not data["taken"]:
        lines.append("no route serves the call")
    return "\n".join(lines)


routes.add_command(list_, "list")
routes.add_command(explain)
