"""Carries out each action once, whatever a browser does: double click, reload, lost reply.

A form has a one-time action id. The first request with it runs the action, in a task that outlives
the request; the others wait for the same result. Before the action an audit entry `request` is
written, with the reason and the action id: after a restart, and in other processes, the id is
recognized by it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from postroom.admin.texts import cut, instant
from postroom.commands import AuditEntry, audit_entry
from postroom.dashboard.actions import Order, Outcome, Plan
from postroom.dashboard.watch import StoreWatch
from postroom.errors import ConfigError, NotFoundError

MAX_REASON = 500
_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_REMEMBERED = 5_000
_LOOKED_AT = 200  # audit entries


Make = Callable[[], Awaitable[Plan]]


class _Begun(NamedTuple):
    fingerprint: str
    task: asyncio.Task[Outcome]


def new_action_id() -> str:
    """Return a one-time id for a form."""
    return secrets.token_urlsafe(12)


class Once:
    """The actions of this process, by store and action id."""

    def __init__(self) -> None:
        self._begun: OrderedDict[tuple[str, str], _Begun] = OrderedDict()

    async def run(
        self, watch: StoreWatch, action_id: str, fingerprint: str, plan: Make, order: Order
    ) -> Outcome:
        """Plan and carry out an action, or return the result of the first request with this id.

        An action that could not be planned has done nothing: its id can be used again. Raises
        ConfigError for an id that belongs to another action.
        """
        if not _ID.fullmatch(action_id):
            raise ConfigError("action_id must have 8 to 64 letters, digits, - and _")
        fingerprint = f"{order.person.name}\x00{fingerprint}"
        key = (watch.name, action_id)
        begun = self._begun.get(key)
        if begun is None:
            task = asyncio.create_task(self._run(watch, action_id, plan, order))
            task.add_done_callback(_heard)
            begun = self._begun[key] = _Begun(fingerprint, task)
            while len(self._begun) > _REMEMBERED:
                self._begun.popitem(last=False)
        elif begun.fingerprint != fingerprint:
            raise ConfigError("this action id belongs to another action; load the page again")
        return await asyncio.shield(begun.task)

    def outcome(self, store: str, action_id: str) -> Outcome:
        """Return the result of an action of this process. Raises NotFoundError."""
        begun = self._begun.get((store, action_id))
        if begun is None:
            raise NotFoundError("this action is not known here any more; the audit log has it")
        return begun.task.result() if begun.task.done() else Outcome("It is still running")

    async def _run(self, watch: StoreWatch, action_id: str, make: Make, order: Order) -> Outcome:
        try:
            store = await watch.open()
            mark = f"(action {action_id})"
            for entry in await store.audit_log(_LOOKED_AT):
                if entry.what == "request" and entry.about.endswith(mark):
                    return Outcome(_repeated(entry))
            plan = await make()
        except BaseException:
            self._begun.pop((watch.name, action_id), None)
            raise
        await store.record_audit(_request(plan, order, mark))
        try:
            return await plan.run(store, order)
        finally:
            watch.changed()


def _heard(task: asyncio.Task[Outcome]) -> None:
    """Take note of an error whose request was given up."""
    if not task.cancelled():
        task.exception()


def _request(plan: Plan, order: Order, mark: str) -> AuditEntry:
    about = f"{cut(plan.about, 1_000)}: {cut(order.reason, MAX_REASON)} {mark}"
    return audit_entry(order.person.name, "request", plan.number or 1, [about])


def _repeated(entry: AuditEntry) -> str:
    at = (instant(entry.at_us) or "")[:19]
    return f"This action was requested at {at}Z by {cut(entry.who, 60)}; nothing was repeated"
