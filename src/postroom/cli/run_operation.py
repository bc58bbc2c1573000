"""Runs a stored operation in this process, or waits for the process that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from uuid import uuid4

import click

from postroom.admin.texts import many, one_line
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import print_json
from postroom.cli.progress import Stop, progress
from postroom.engine.lock_retries import past_locks
from postroom.engine.operations.driver import drive
from postroom.engine.operations.request import ReplayRequest, read_position, read_request
from postroom.engine.service import end
from postroom.errors import ConfigError, NotFoundError, StoreError
from postroom.operation import Change, Operation, OperationState
from postroom.record import State
from postroom.store import Store

_LOOK_SECONDS = 0.2
_QUIET_SECONDS = 3.0  # before a line that a canary waits
_REPEAT_SECONDS = 60.0
_UNFINISHED = (State.PENDING, State.PROCESSING, State.FAILED)


async def replay_by_operation(
    store: Store, request: ReplayRequest, about: str, total: int, stop: Stop, *, by: str,
    detach: bool, as_json: bool,
) -> int:  # fmt: skip
    """Start the replay, or continue the one with the same selection; returns the exit code."""
    if request.limit is not None:
        total = min(total, request.limit)
    new = request.new_operation(total, about)
    operation, is_new = await past_locks(lambda: store.start_operation(new, by=by))
    if operation.state == OperationState.STOPPED:
        raise NotFoundError(_way_out(operation))
    ours = is_new
    if operation.state == OperationState.PAUSED:
        ours = await store.change_operation(operation.id, Change.RESUME, by=by)
        _say(f"resumed operation {operation.id}, which selects the same events", as_json=as_json)
        operation = await _look(store, operation.id)
    elif not is_new:
        _say(
            f"operation {operation.id} of {operation.who} selects the same events and is running; "
            "its limit and its rate stay",
            as_json=as_json,
        )
    if detach:
        return _report(operation, operation.handled, total, as_json=as_json)
    if request.canary:
        _say("each group is replayed when relays have sent the one before", as_json=as_json)
    after = await run_here(store, operation.id, stop, by=by if ours else None)
    return _report(after, operation.handled, total, as_json=as_json, stopped_here=stop.asked)


async def run_here(store: Store, operation_id: str, stop: Stop, *, by: str | None) -> Operation:
    """Drive an operation whenever no other process does; returns it when it no longer runs.

    by    the operator's name: a Ctrl-C pauses the operation. None: it leaves it to other processes
    """
    owner = str(uuid4())
    found = await _look(store, operation_id)
    with progress("replaying", found.total) as bar:
        shown = 0

        def show(handled: int) -> None:
            nonlocal shown
            bar.add(handled - shown)
            shown = handled

        waiting = CanaryWait(store, operation_id, bar.clear)

        try:
            while found.state == OperationState.RUNNING and not stop.asked:
                show(found.handled)
                held = await store.take_operation(operation_id, owner) if found.free else None
                if held is None:
                    await asyncio.sleep(_LOOK_SECONDS)
                    await waiting.look()
                else:
                    await _drive(store, held, stop, show, by, waiting)
                found = await _look(store, operation_id)
            if found.state == OperationState.RUNNING and by is not None:  # Ctrl-C
                await store.change_operation(operation_id, Change.PAUSE, by=by)
                found = await _look(store, operation_id)
        except StoreError as error:
            raise StoreError(
                f"{error}; the operation is kept: a relay continues it, or: postroom operations "
                f"run {operation_id}"
            ) from error
    return found


async def _drive(
    store: Store,
    held: Operation,
    stop: Stop,
    show: Callable[[int], None],
    by: str | None,
    waiting: CanaryWait,
) -> None:
    """Drive until it ends or a Ctrl-C comes, which takes effect after the running step."""
    task = asyncio.create_task(drive(store, held, show))
    while not task.done() and not stop.asked:
        await asyncio.wait({task}, timeout=_LOOK_SECONDS)
        await waiting.look()
    if task.done():
        await task
        return
    if by is not None:
        await store.change_operation(held.id, Change.PAUSE, by=by)
    await end(task)


class CanaryWait:
    """Tells why a canary does not go on: the events of its last group are not sent yet."""

    def __init__(self, store: Store, operation_id: str, clear: Callable[[], object]) -> None:
        self._store = store
        self._operation_id = operation_id
        self._clear = clear
        self._watched: tuple[str, ...] = ()
        self._look_at = self._told_at = monotonic() + _QUIET_SECONDS

    async def look(self) -> None:
        """Print a line if the same group has waited for some seconds, and later ones rarely."""
        if monotonic() < self._look_at:
            return
        self._look_at = monotonic() + 1.0
        with suppress(ConfigError, StoreError):  # the driver reports it
            found = await _look(self._store, self._operation_id)
            watched = read_position(found, read_request(found)).watched
            if watched != self._watched:
                self._watched, self._told_at = watched, monotonic() + _QUIET_SECONDS
            elif watched and monotonic() >= self._told_at:
                self._told_at = monotonic() + _REPEAT_SECONDS
                text = await self._reason(watched)
                self._clear()
                click.echo(text, err=True)

    async def _reason(self, watched: Sequence[str]) -> str:
        there = (await self._store.look_up(watched)).values()
        open_ones = [one for one in there if one.state in _UNFINISHED]
        text = f"waiting until {many(len(open_ones), 'event')} of the canary's last group went out"
        for stream in sorted({one.stream for one in open_ones}):
            if not (await self._store.leases(stream)).members:
                text += f"; no relay serves stream {one_line(stream)}: start one"
        return text


async def _look(store: Store, operation_id: str) -> Operation:
    found = await store.operation(operation_id)
    if found is None:
        raise NotFoundError(f"no operation with id {operation_id!r}; see: postroom operations")
    return found


def _report(
    after: Operation, before: int, total: int, *, as_json: bool, stopped_here: bool = False
) -> int:
    changed = after.handled - before
    if as_json:
        facts = {"verb": "replay", "chosen": total, "changed": changed, "dry_run": False}
        print_json({**facts, "operation": after.id, "state": after.state})
    match after.state:
        case OperationState.DONE:
            gone = total - changed
            note = f"; {gone:,} changed meanwhile" if gone > 0 else ""
            _say(f"replayed {many(changed, 'event')}{note}", as_json=as_json, err=False)
            return ExitCode.OK
        case OperationState.PAUSED if stopped_here:
            click.echo(
                f"interrupted: {max(0, total - changed):,} events are unchanged; operation "
                f"{after.id} is paused: run the command again to continue, or: postroom "
                f"operations cancel {after.id}",
                err=True,
            )
            return ExitCode.INTERRUPTED
        case OperationState.RUNNING if not stopped_here:
            _say(
                f"started operation {after.id}; a relay runs it: postroom operations",
                as_json=as_json,
                err=False,
            )
            return ExitCode.OK
        case OperationState.RUNNING:
            click.echo(f"operation {after.id} continues in another process", err=True)
            return ExitCode.INTERRUPTED
        case _:
            click.echo(_way_out(after), err=True)
            return ExitCode.BROKEN


def _way_out(operation: Operation) -> str:
    """Return why an operation does not run, and how to go on."""
    name, why = operation.id, f": {one_line(operation.error)}" if operation.error else ""
    told = f"operation {name} is {operation.state} after {many(operation.handled, 'event')}{why}"
    if operation.state == OperationState.CANCELLED:
        return told
    return f"{told}; postroom operations resume {name}, or cancel {name}"


def _say(text: str, *, as_json: bool, err: bool = True) -> None:
    if not as_json:
        click.echo(text, err=err)
