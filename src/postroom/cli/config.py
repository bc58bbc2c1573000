"""`postroom config show`: every setting and its source."""

from __future__ import annotations

from collections.abc import Mapping

import click

from postroom.cli.configuration import DEFAULT, Setting
from postroom.cli.options import json_option, mode_of, print_json


@click.command(short_help="Show every setting and its source.")
@click.argument("what", type=click.Choice(["show"]), default="show")
@json_option
@click.pass_context
def config(ctx: click.Context, what: str, as_json: bool) -> None:  # noqa: ARG001 - `show` is the only one
    """Show the settings of `run` and the source of each; secrets are masked.

    \b
    Examples:
      postroom config show
      POSTROOM_BATCH_SIZE=500 postroom config show --json
    """  # noqa: D301 - click knows the sign
    found = mode_of(ctx).configuration
    process = found.process({})
    relays = [plan.values for plan in found.relays({})]
    if as_json:
        consumers = [_facts(values) for values in found.consumers]
        facts = [_facts(values) for values in relays]
        print_json({"process": _facts(process), "relays": facts, "consumers": consumers})
        return
    lines = [f"file: {found.source.path or 'none'}", "", *_table(process)]
    for values in relays:
        lines += ["", f"relay of stream {values['stream'].value}", *_table(values)]
    for number, values in enumerate(found.consumers, 1):
        lines += ["", f"consumer {number}", *_table(values)]
    click.echo("\n".join(lines))


def _facts(values: Mapping[str, Setting]) -> dict[str, dict[str, object]]:
    return {
        name: {"value": setting.shown, "source": setting.source} for name, setting in values.items()
    }


def _table(values: Mapping[str, Setting]) -> list[str]:
    shown = {n: "-" if s.shown in (None, "") else str(s.shown) for n, s in values.items()}
    width = max(len(name) for name in values)
    return [
        f"  {name:<{width}}  {shown[name]}"
        + ("" if values[name].source == DEFAULT else f"  ({values[name].source})")
        for name in values
    ]
