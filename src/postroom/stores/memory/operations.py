"""Operations: stored work on many events, in fenced steps."""

from __future__ import annotations

from postroom.commands import MAX_WHO_CHARS
from postroom.model.durations import span_microseconds
from postroom.operation import (
    AHEAD_SECONDS,
    FINISHED,
    LEASE_SECONDS,
    Change,
    NewOperation,
    Operation,
    OperationState,
    Step,
    new_operation_id,
)
from postroom.stores.memory.commands import Commands
from postroom.stores.memory.tables import Stored
from postroom.stores.operations import changed, ended, started, stored_error


class Operations(Commands):
    """The operations of the memory store."""

    async def operations(self, *, unfinished: bool = False, limit: int = 100) -> list[Operation]:
        found = [
            self._shown(one)
            for one in self.data.operations.values()
            if not unfinished or one.state not in FINISHED
        ]
        running = str(OperationState.RUNNING)
        return sorted(
            found, key=lambda one: (unfinished and one.state != running, -one.created_us)
        )[:limit]

    async def operation(self, operation_id: str) -> Operation | None:
        found = self.data.operations.get(operation_id)
        return None if found is None else self._shown(found)

    async def start_operation(self, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
        there = self.data.unfinished.get(new.fingerprint)
        if there is not None:
            return self._shown(self.data.operations[there]), False
        name, now, who = new_operation_id(), self.now_us(), by[:MAX_WHO_CHARS]
        state = str(OperationState.RUNNING)
        one = Operation(
            name, new.kind, new.request, state, who, now, now, new.total, 0, 0, None, None, None,
            None, 0, free=True,
        )  # fmt: skip
        self.data.operations[name] = one
        self.data.unfinished[new.fingerprint] = name
        await self.record_audit(started(by, name, new))
        return one, True

    async def take_operation(
        self, operation_id: str, owner: str, lease_seconds: float = LEASE_SECONDS
    ) -> Operation | None:
        found = await self.operation(operation_id)
        if found is None or found.state != OperationState.RUNNING:
            return None
        if not found.free and found.owner != owner:
            return None
        until = self.now_us() + span_microseconds(lease_seconds)
        return self._put(found._replace(owner=owner, until_us=until, token=found.token + 1))

    async def advance_operation(self, held: Operation, step: Step) -> tuple[str, ...] | None:
        found = self.data.operations.get(held.id)
        if found is None or found.state != OperationState.RUNNING:
            return None
        if (found.owner, found.token) != (held.owner, held.token):
            return None
        now = self.now_us()

        def is_meant(stored: Stored) -> bool:
            settled = stored.settled_us or 0
            return stored.state == step.of_state and not found.created_us < settled <= now

        chosen = [one for one in self._chosen(step.ids, over=True) if is_meant(one)]
        sent = self._sent_as(chosen, new_id=step.new_id)
        position = step.new_position(sent) or found.position
        if chosen:
            await self._replay(chosen, sent, by=held.who)
        until = now + span_microseconds(step.lease_seconds)
        after = found._replace(
            state=str(step.to),
            changed_us=now,
            handled=found.handled + len(sent),
            failed=found.failed + step.failed,
            position=position,
            error=stored_error(step),
            owner=None if step.releases else found.owner,
            until_us=None if step.releases else until,
        )
        self._put(after)
        if step.to != OperationState.RUNNING:
            await self.record_audit(ended(after, step))
        return tuple(sent)

    async def change_operation(self, operation_id: str, change: Change, *, by: str) -> bool:
        found = self.data.operations.get(operation_id)
        if found is None or found.state not in change.before:
            return False
        error = None if change == Change.RESUME else found.error
        self._put(
            found._replace(
                state=str(change.after), error=error, changed_us=self.now_us(), owner=None,
                until_us=None, token=found.token + 1,
            )
        )  # fmt: skip
        await self.record_audit(changed(by, operation_id, change))
        return True

    async def prune_operations(self, older_than_seconds: float, limit: int) -> int:
        before = self.now_us() - span_microseconds(older_than_seconds)
        finished = [one for one in self.data.operations.values() if one.state in FINISHED]
        old = [one for one in finished if one.changed_us < before]
        for one in sorted(old, key=lambda one: one.created_us)[:limit]:
            del self.data.operations[one.id]
        return min(len(old), limit)

    def _put(self, one: Operation) -> Operation:
        self.data.operations[one.id] = one
        if one.state in FINISHED:
            self.data.unfinished = {
                key: name for key, name in self.data.unfinished.items() if name != one.id
            }
        return self._shown(one)

    def _shown(self, one: Operation) -> Operation:
        now, until = self.now_us(), one.until_us
        lapsed = until is None or not now < until <= now + span_microseconds(AHEAD_SECONDS)
        running = one.state == OperationState.RUNNING
        return one._replace(free=running and (one.owner is None or lapsed))
