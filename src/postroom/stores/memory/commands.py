"""Operators' commands: replay, edit, bury, skip, purge, retry now, cancel (rules L7 and B6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from postroom.commands import UNSENT, AuditEntry, Edit, audit_entry, require_all
from postroom.errors import NotFoundError
from postroom.event import MAX_ID_BYTES
from postroom.event import new_id as make_id
from postroom.model.clock import instant_text
from postroom.model.codec import encode_json
from postroom.model.controls import Control, check_control, check_limits
from postroom.model.history import append, command
from postroom.record import Stage, State, key_hash, lane_of, short_error, stored_error
from postroom.stores.controls import control_entry, limit_entry
from postroom.stores.edits import check_editable, edited
from postroom.stores.memory.lookup import Lookup
from postroom.stores.memory.tables import Stored
from postroom.transaction import Row

SKIPPED = "postroom.skipped"
_SECOND = 1_000_000


class Commands(Lookup):
    """The operators' commands of the memory store."""

    async def record_audit(self, entry: AuditEntry) -> None:
        if entry.how_many:
            self.data.audit_log.append(entry._replace(at_us=self.now_us()))

    async def set_control(
        self,
        kind: str,
        name: str,
        *,
        pause: bool,
        seconds: float | None = None,
        reason: str = "",
        by: str,
    ) -> bool:
        check_control(kind, name)
        now = self.now_us()
        before = self.data.controls.get((kind, name), Control(kind, name, paused=False))
        if not pause and before.paused_us is None:
            return False
        self.data.controls[kind, name] = before._replace(
            paused_us=now if pause else None,
            until_us=now + int(seconds * _SECOND) if pause and seconds is not None else None,
            reason=short_error(reason),
            who=by,
            changed_us=now,
        )
        await self.record_audit(
            control_entry(by, kind, name, pause=pause, seconds=seconds, reason=reason)
        )
        return True

    async def edit(self, event_id: str, edit: Edit, *, by: str | None = None) -> str:
        seq = self.data.ids.get(event_id)
        old = None if seq is None else self.data.rows[seq]
        found, replaced_by = (None, None) if old is None else (old.record(), old.replaced_by)
        record = check_editable(event_id, found, replaced_by)
        assert old is not None
        new_id, place = make_id(), self.next_seq()
        fields = edited(record, edit, new_id)
        row = old.row._replace(id=new_id, available_us=None, expires_us=None, **fields._asdict())
        hashed = key_hash(row.aggregate_type, row.key, new_id)
        row = row._replace(key_hash=hashed, lane=lane_of(hashed))
        self.data.lane_leases(row.stream)[old.row.lane].replayed_us = self.now_us()
        if row.kseq:  # consumers wait for this number: the new event takes it, and its place
            self.data.drop(old)
            old.seq, place = place, old.seq
            old.row = old.row._replace(kseq=0)
            self.data.put(old)
        elif row.kseq == 0:
            row = row._replace(kseq=self._count_up(row))
        old.replaced_by = new_id
        old.history = append(old.history, command(by, "edit", f"sent as {new_id}"))
        began = append(None, command(by, "edit", f"replaces {event_id}"))
        self.data.put(Stored(place, row, self.now_us(), history=began))
        await self._note(by, "edit", [event_id], f"sent as {new_id}")
        self.changed()
        return new_id

    def _count_up(self, row: Row) -> int:
        name = (row.topic, row.key_hash)
        self.data.counters[name] = self.data.counters.get(name, 0) + 1
        return self.data.counters[name]

    async def purge(self, ids: Sequence[str], *, by: str | None = None) -> int:
        known = [self.data.ids[each] for each in dict.fromkeys(ids) if each in self.data.ids]
        chosen = [s for s in map(self.data.rows.__getitem__, sorted(known)) if s.state in UNSENT]
        for stored in chosen:
            self.data.drop(stored)
        await self._note(by, "purge", [stored.row.id for stored in chosen])
        return len(chosen)

    async def cancel(self, ids: Sequence[str], reason: str = "", *, by: str | None = None) -> int:
        chosen = [s for s in self._chosen(ids, over=False) if s.is_delayed and s.row.kseq is None]
        for stored in chosen:
            self._tell(stored, by, "cancel", reason)
            self.data.cancel(stored, self.now_us())
        await self._note(by, "cancel", [stored.row.id for stored in chosen], reason)
        return len(chosen)

    async def reschedule(self, ids: Sequence[str], at_us: int, *, by: str | None = None) -> int:
        chosen = [
            s
            for s in self._chosen(ids, over=False)
            if s.is_delayed and s.row.kseq is None and (s.row.expires_us or at_us + 1) > at_us
        ]
        time = instant_text(at_us)
        for stored in chosen:
            self._tell(stored, by, "reschedule", time)
            self.data.reschedule(stored, at_us)
        await self._note(by, "reschedule", [stored.row.id for stored in chosen], time)
        self.changed()
        return len(chosen)

    async def set_limits(
        self,
        kind: str,
        name: str,
        *,
        per_second: float | None,
        in_flight: int | None,
        by: str,
    ) -> bool:
        check_limits(kind, name, per_second, in_flight)
        before = self.data.controls.get((kind, name), Control(kind, name, paused=False, who=by))
        limited = per_second is not None or in_flight is not None
        if not limited and not before.limited:
            return False
        self.data.controls[kind, name] = before._replace(
            max_per_second=per_second, max_in_flight=in_flight, changed_us=self.now_us()
        )
        await self.record_audit(limit_entry(by, kind, name, per_second, in_flight))
        return True

    async def forget(
        self,
        ids: Sequence[str],
        about: str,
        *,
        accepted: Sequence[str] = (),  # noqa: ARG002 - its inbox has nothing but ids
        by: str | None = None,
    ) -> int:
        known = [self.data.ids[each] for each in dict.fromkeys(ids) if each in self.data.ids]
        chosen = [s for s in map(self.data.rows.__getitem__, known) if s.stage == Stage.OVER]
        for stored in chosen:
            self.data.drop(stored)
        if by is not None:
            await self.record_audit(audit_entry(by, "forget", len(chosen), (), about))
        return len(chosen)

    async def retry_now(self, ids: Sequence[str], *, by: str | None = None) -> int:
        chosen = [
            stored
            for stored in self._chosen(ids, over=False)
            if stored.stage == Stage.WAITING and stored.state == State.FAILED
        ]
        for stored in chosen:
            stored.next_attempt_us = self.now_us()
            self._tell(stored, by, "retry-now")
        await self._note(by, "retry-now", [stored.row.id for stored in chosen])
        self.changed()
        return len(chosen)

    @staticmethod
    def _tell(stored: Stored, by: str | None, what: str, reason: str = "") -> None:
        """Record an operator's command in the history of its event."""
        if by is not None:
            stored.history = append(stored.history, command(by, what, reason))

    async def _note(self, by: str | None, what: str, ids: Sequence[str], reason: str = "") -> None:
        if by is not None:
            await self.record_audit(audit_entry(by, what, len(ids), ids, reason))

    async def replay(
        self, ids: Sequence[str], *, new_id: bool = False, by: str | None = None
    ) -> int:
        chosen = self._chosen(ids, over=True)
        await self._replay(chosen, self._sent_as(chosen, new_id=new_id), by=by)
        return len(chosen)

    @staticmethod
    def _sent_as(chosen: Iterable[Stored], *, new_id: bool) -> list[str]:
        return [make_id() if new_id else stored.row.id for stored in chosen]

    async def _replay(
        self, chosen: list[Stored], sent_as: Sequence[str], *, by: str | None
    ) -> None:
        """Send events again, under these ids."""
        for stream, lane in {(s.row.stream, s.row.lane) for s in chosen}:
            self.data.lane_leases(stream)[lane].replayed_us = self.now_us()
        await self._note(by, "replay", [stored.row.id for stored in chosen])
        entry = command(by, "replay")
        for stored, event_id in zip(chosen, sent_as, strict=True):
            new_id = event_id != stored.row.id
            if not new_id:
                stored.history = append(stored.history, entry)
            if new_id:
                row = stored.row._replace(id=event_id)
                hashed = key_hash(row.aggregate_type, row.key, row.id)
                row = row._replace(key_hash=hashed, lane=lane_of(hashed), expires_us=None)
                fresh = Stored(self.next_seq(), row, self.now_us())
            elif stored.row.kseq == 0:
                self.data.drop(stored)
                row = stored.row._replace(expires_us=None)
                fresh = Stored(self.next_seq(), row, stored.created_us, history=stored.history)
            else:
                stored.state, stored.attempts = State.PENDING, 0
                stored.settled_us = stored.next_attempt_us = stored.receipt = None
                stored.row = stored.row._replace(expires_us=None)
                self.data.move(stored, Stage.READY)
                continue
            if fresh.row.kseq is not None:
                fresh.row = fresh.row._replace(kseq=self._count_up(fresh.row))
            self.data.put(fresh)
        self.changed()

    async def bury(
        self,
        ids: Sequence[str],
        reason: str,
        *,
        by: str | None = None,
        history: str | None = None,
        attempts: int | None = None,
        whole: bool = False,
    ) -> int:
        chosen = self._chosen(ids, over=False)
        if whole:
            require_all(ids, {stored.row.id for stored in chosen})
        self._depose(chosen)
        await self._note(by, "bury", [stored.row.id for stored in chosen], reason)
        entry = command(by, "bury", reason)
        for stored in chosen:
            stored.history = history or append(stored.history, entry)
            if attempts is not None:
                stored.attempts = attempts
                stored.row = stored.row._replace(available_us=None)
            self._bury(stored, stored_error(reason))
        self._repair_keys(chosen)
        return len(chosen)

    async def skip(self, event_id: str, reason: str, *, by: str | None = None) -> None:
        chosen = self._chosen([event_id], over=False)
        if not chosen:
            raise NotFoundError(f"cannot skip: there is no unfinished event with id {event_id!r}")
        self._depose(chosen)
        await self._note(by, "skip", [event_id], reason)
        stored = chosen[0]
        original = stored.row
        body = encode_json({"skipped": original.id, "reason": reason}).decode()
        del self.data.ids[original.id]
        stored.row = original._replace(
            id=self._marker_id(stored),
            type=SKIPPED, payload=body, payload_bytes=None, content_type="application/json",
            schema_version=1, occurred_us=self.now_us(),
            size=len(body) + len((original.headers or "").encode()), options=None, expires_us=None,
        )  # fmt: skip
        self.data.ids[stored.row.id] = stored.seq
        number = None if original.kseq is None else 0
        grave = Stored(
            self.next_seq(), original._replace(kseq=number), stored.created_us,
            attempts=stored.attempts,
            history=append(stored.history, command(by, "skip", reason)),
        )  # fmt: skip
        stored.state, stored.attempts = State.PENDING, 0
        stored.next_attempt_us = stored.last_error = stored.history = None
        self.data.move(stored, Stage.READY)
        self.data.put(grave)
        self._bury(grave, stored_error(reason))
        self._repair_keys(chosen)
        self.changed()

    def _chosen(self, ids: Sequence[str], *, over: bool) -> list[Stored]:
        seqs = sorted(self.data.ids[i] for i in dict.fromkeys(ids) if i in self.data.ids)
        return [
            stored
            for stored in (self.data.rows[seq] for seq in seqs)
            if (stored.stage == Stage.OVER) == over and stored.replaced_by is None
        ]

    def _marker_id(self, stored: Stored) -> str:
        marker = f"skip:{stored.row.id}"
        if len(marker.encode()) > MAX_ID_BYTES or marker in self.data.ids:
            return f"skip:{stored.seq}:{make_id()}"
        return marker

    def _depose(self, chosen: Iterable[Stored]) -> None:
        """Take the lanes of these events away, so that nothing in flight counts (L7)."""
        for stream, lane in {(s.row.stream, s.row.lane) for s in chosen}:
            lease = self.data.lane_leases(stream)[lane]
            lease.owner, lease.until_us = None, 0
            lease.token += 1

    def _repair_keys(self, chosen: Iterable[Stored]) -> None:
        for stored in chosen:
            if self.data.is_broken(stored.row.stream, stored.row.key_hash):
                self.data.advance(stored.row.stream, stored.row.key_hash)

    def _bury(self, stored: Stored, error: str) -> None:
        self._clear(stored, State.DEAD)
        stored.last_error, stored.settled_us = error, self.now_us()
        self.data.move(stored, Stage.OVER)

    @staticmethod
    def _clear(stored: Stored, state: State) -> None:
        stored.state = state
        stored.lease_owner = stored.lease_until_us = None
