"""`postroom reconcile`: add missing events of documents written without transactions."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import click

from postroom.admin.texts import one_line
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import json_option, print_json, reaching
from postroom.cli.progress import Bar, gently, progress
from postroom.errors import MissingExtraError

if TYPE_CHECKING:
    from postroom.stores.mongo import Reconciler
    from postroom.stores.mongo.reconciler import Report

_SHOWN = 10


@click.command(short_help="Add missing events of documents (MongoDB).")
@click.argument("reconciler", metavar="MODULE:ATTRIBUTE")
@click.option("--once", is_flag=True, help="One run over at most `limit` documents.")
@json_option
def reconcile(reconciler: str, once: bool, as_json: bool) -> int:
    """Find documents whose event is missing and add the event.

    For MongoDB without transactions. The argument is the import path of a Reconciler; modules in
    the current folder are found. Runs to the end of the collection; after an interruption the next
    run resumes at the same place. Exit code 1 if some documents could not be converted to events.

    \b
    Examples:
      postroom reconcile shop.outbox:pages
      postroom reconcile shop.outbox:pages --once --json
    """  # noqa: D301 - click knows the sign
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a script has its own folder there
    try:
        from postroom.stores.mongo import Reconciler
    except ImportError as error:
        raise MissingExtraError("mongo", "pymongo") from error
    return asyncio.run(_run(Reconciler.load(reconciler), once=once, as_json=as_json))


async def _run(reconciler: Reconciler, *, once: bool, as_json: bool) -> int:
    looked, present, repaired, finished = 0, 0, 0, False
    failed: list[tuple[str, str]] = []
    async with gently() as stop:
        try:
            with progress("looking") as bar, reaching(reconciler.store):
                while not (finished or stop.asked):
                    report = await reconciler.run_once(_Step(bar))
                    looked, present = looked + report.looked, present + report.present
                    repaired, finished = repaired + len(report.repaired), report.finished
                    failed += [(str(name), error) for name, error in report.failed]
                    if once:
                        break
        finally:
            await reconciler.close()
    if as_json:
        facts = {"looked": looked, "present": present, "repaired": repaired, "finished": finished}
        bad = [{"document": name, "error": error} for name, error in failed]
        print_json({"reconciler": reconciler.name, **facts, "failed": bad})
    else:
        click.echo(f"{looked:,} documents checked, {repaired:,} missing events added")
        for name, error in failed[:_SHOWN]:
            click.echo(one_line(f"no event for {name}: {error}"), err=True)
        if len(failed) > _SHOWN:
            click.echo(f"… and {len(failed) - _SHOWN:,} more", err=True)
    if stop.asked and not finished:
        return ExitCode.INTERRUPTED
    return ExitCode.BROKEN if failed else ExitCode.OK


class _Step:
    """Updates a progress bar from a run's reports."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._seen = 0

    def __call__(self, report: Report) -> None:
        self._bar.add(report.looked - self._seen)
        self._seen = report.looked
