"""`python -m spec [--deep] [--steps] [NAME …]`: run the model.

Worlds first: every promise must hold in all of their states. Then one mechanism at a time is taken
out: its promise must break. Exit code 1 if anything is otherwise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import click

from spec.catalog import SWITCHES, WORLDS, Switch, World
from spec.run import Verdict, break_it, check


@click.command(help=__doc__)
@click.option("--deep", is_flag=True, help="The big worlds, too: minutes.")
@click.option("--steps", is_flag=True, help="Show how each promise breaks, step by step.")
@click.option("--workers", default=2, show_default=True, help="Searches side by side.")
@click.argument("names", nargs=-1)
def main(*, deep: bool, steps: bool, workers: int, names: tuple[str, ...]) -> None:
    worlds = [w for w in WORLDS if (w.name in names if names else deep or not w.deep)]
    switches = [s for s in SWITCHES if not names or s.name in names]
    if missing := set(names) - {w.name for w in worlds} - {s.name for s in switches}:
        raise click.UsageError(f"there is no {', '.join(sorted(missing))}")
    wrong = 0
    with ThreadPoolExecutor(workers) as pool:
        for world, verdict in zip(worlds, pool.map(check, worlds), strict=True):
            wrong += verdict.violated is not None
            click.echo(_of_world(world, verdict))
        broken = pool.map(lambda switch: break_it(switch, steps=steps), switches)
        for switch, verdict in zip(switches, broken, strict=True):
            wrong += verdict.violated is None
            click.echo(_of_switch(switch, verdict))
            if verdict.steps:
                click.echo(verdict.steps)
    click.echo(f"{len(worlds)} worlds, {len(switches)} switches, {wrong} not as they should be")
    raise SystemExit(1 if wrong else 0)


def _of_world(world: World, verdict: Verdict) -> str:
    said = f"BROKEN: {verdict.violated}" if verdict.violated else "hold"
    return (
        f"{world.name:33} {verdict.states:>9,} states {verdict.megabytes:>6,.0f} MB "
        f"{verdict.seconds:>5.1f} s  {' '.join(world.promises)} {said}"
    )


def _of_switch(switch: Switch, verdict: Verdict) -> str:
    said = "breaks" if verdict.violated else "SURVIVES"
    return (
        f"without: {switch.name:16} {verdict.states:>7,} states  {switch.promise} {said}: "
        f"{switch.what}"
    )


if __name__ == "__main__":
    main()
