"""Bugs of a first MongoDB outbox, each caught on a real server."""

from contextlib import asynccontextmanager
from functools import partial

from tests.mutants.mutant import Mutant

STORE = "tests/contract/test_store_mongo.py::TestReplicaSetOfOne::"
WRITES = "tests/contract/test_transactions_pymongo.py::"
FAULTS = "tests/scenario/test_mongo_faults.py::"
HOSTILE = "tests/scenario/test_mongo_hostile.py::"
EMBEDDED = "tests/scenario/test_mongo_embedded.py::"
WINDOWS = "tests/scenario/test_mongo_windows.py::"
COST = "tests/unit/test_mongo_cost.py::"
WAKE = "tests/scenario/test_mongo_change_stream.py::"
ODD = "tests/scenario/test_mongo_embedded_hostile.py::"
RECONCILER_ODD = "tests/scenario/test_mongo_reconciler_odd.py::"
RECONCILER = "tests/scenario/test_mongo_reconciler.py::"
PARTS = "tests/unit/test_mongo_parts.py::"
SERVER = "tests/unit/test_mongo_server.py::"


def _plant_fence(fence):
    from postroom.stores.mongo import blocks, settle
    from postroom.stores.mongo import leases as leases_module

    leases_module.fence = blocks.fence = settle.fence = fence


def _keys_in_passing():
    from postroom.stores.mongo import lookup

    async def open_keys(db, stream, limit):
        where = {"stage": {"$in": list(lookup._OPEN)}, "stream": stream}
        found = db.outbox.find(where, {"key_hash": 1}).limit(limit)
        return [bytes(one["key_hash"]) async for one in found]

    lookup.open_keys = open_keys


def _no_fence():
    async def open_door(db, session, stream, owner, held):
        return set(held)

    _plant_fence(open_door)


def _fence_without(*left_out, writes=True):
    from bson.int64 import Int64

    from postroom.stores.mongo import leases as leases_module

    def condition(stream, owner, held):
        asked = {
            "owner": {"owner": owner},
            "until": {"$expr": {"$gt": ["$until", "$$NOW"]}},
            "token": leases_module._tokens(stream, held),
        }
        if "token" in left_out:
            asked["token"] = {
                "_id": {"$in": [leases_module.lane_id(stream, lane) for lane in held]}
            }
        return {
            name: value for part, fields in asked.items() if part == "token" or part not in left_out
            for name, value in fields.items()
        }  # fmt: skip

    async def loose(db, session, stream, owner, held):
        live = condition(stream, owner, held)
        if writes and session is not None:
            await db.lease.update_many(live, {"$inc": {"settles": Int64(1)}}, session=session)
        found = db.lease.find(live, {"lane": 1}, session=session)
        return {lease["lane"] async for lease in found}

    _plant_fence(loose)


def _lost_commits_go_on():
    from postroom.stores.mongo.connection import Connection

    async def nothing(self):
        self._lost.clear()

    Connection.end_lost_sessions = nothing


def _the_dead_keep_their_lanes():
    from postroom.stores.mongo import leases as leases_module

    async def nothing(db, stream):
        pass

    leases_module._end_sessions_of_the_dead = nothing


def _no_numbers():
    """Events of one statement share a cluster time."""
    from bson.int64 import Int64

    from postroom.transactions.mongo import sessions

    sessions.place_numbers = lambda count, salt: [Int64(count - n) for n in range(count)]


def _clock_goes_back():
    from postroom.transactions.mongo import documents

    documents.TICK[0]["$set"] = {"seconds": documents._SECONDS, "tick": 1}


def _no_snapshot():
    """The walk of a read, and the question for blocks, each at another time."""
    from postroom.stores.mongo import read

    async def believe(db, harvest, chosen):
        return list(chosen)

    read._without_gaps = believe


def _sessions_are_no_more():
    from postroom.stores.mongo import errors

    transient = errors.is_transient
    errors.is_transient = lambda error: "Sessions" not in str(error) and transient(error)


def _autocommit():
    from postroom.transactions.mongo.sessions import _SessionWrites

    _SessionWrites.check = lambda self: None


def _any_database():
    from postroom.transactions.mongo.sessions import _Writes

    def believe(self):
        yield from ()
        return True

    _Writes._known = believe


def _duplicates_overwrite():
    from pymongo import UpdateOne

    from postroom.transactions.mongo import documents, sessions

    def upsert_of(row, ct, n):
        new = [{"$replaceWith": documents.document(row, ct, n)}]
        return UpdateOne({"_id": row.id}, new, upsert=True)

    sessions.upsert_of = upsert_of


def _taken_out_first():
    from postroom.stores.mongo.collector import Collector

    copy, take_out = Collector._copy, Collector._take_out

    async def take_out_and_copy(self, found):
        await take_out(self, self._collections[0], found)
        await copy(self, found)

    async def nothing(self, collection, found):
        pass

    Collector._copy, Collector._take_out = take_out_and_copy, nothing


def _placed_by_whoever_copies():
    from postroom.stores.mongo import collector
    from postroom.transactions.mongo.documents import CLUSTER_TIME, place_numbers, upsert_of

    collector.upsert_of = lambda row, ct, n: upsert_of(row, CLUSTER_TIME, place_numbers(1, b"")[0])


def _results_first():
    from postroom.stores.mongo.reconciler import Reconciler

    repair = Reconciler._repair

    async def ask_first(self, db, page, report):
        due = self._due(page, type(report)())
        unserved = await self._served.unserved(db, self.collection, due)
        asked, self._served.unserved = self._served.unserved, _answer(unserved)
        try:
            await repair(self, db, page, report)
        finally:
            self._served.unserved = asked

    Reconciler._repair = ask_first


def _answer(unserved):
    async def answer(db, collection, due):
        return [one for one in due if one in unserved]

    return answer


def _blind_mark():
    from pymongo import UpdateOne

    from postroom.stores.mongo.reconciler_rules import Marked

    async def settled(self, db, collection, due):
        for one in due:
            change = UpdateOne({"_id": one.document["_id"]}, {"$set": {self.field: one.event.id}})
            await db.database[collection].bulk_write([change])

    Marked.settled = settled


def _window_unchecked():
    from postroom.stores.mongo.reconciler_rules import Recent

    Recent.check = lambda self, keep_done_seconds: None


def _transactions_in_parts():
    """Every statement of a settle stands for itself."""
    from postroom.stores.mongo.connection import Connection

    async def attempt(self, session, work):
        return await work(None)

    @asynccontextmanager
    async def borrowed(self):
        yield None

    Connection._attempt, Connection.borrowed = attempt, borrowed


def _host_clock():
    import time
    from datetime import UTC, datetime, timedelta

    from postroom.stores.mongo import leases as leases_module

    leases_module._later = lambda seconds: (
        datetime.fromtimestamp(time.time(), UTC) + timedelta(seconds=seconds)
    )


def _believes_documents():
    from postroom.stores.mongo import lookup, read

    read.sound = lookup.sound = lambda document: document


def _lanes_made_once():
    from postroom.stores.mongo import leases as leases_module

    make = leases_module._make_lanes

    async def once(db, stream):
        if not getattr(db, "made", None):
            db.made = True
            await make(db, stream)

    leases_module._make_lanes = once


def _all_or_nothing():
    from postroom.stores.mongo.collector import Collector

    async def together(self, collection, found):
        return await self._move(collection, found)

    Collector._collect = together


def _no_room_no_event():
    from postroom.stores.mongo import collector

    collector._is_too_large = lambda error: False


def _tried_at_every_look():
    from postroom.stores.mongo.postponed import Postponed

    Postponed.due = lambda self, collection: self.of(collection)


def _another_codec():
    from postroom.stores.mongo import reconciler_rules

    reconciler_rules.plain = lambda db: db.database


def _raw_marks():
    from postroom.stores.mongo.reconciler_rules import Marked

    Marked._same = lambda self, due: {
        "_id": due.document["_id"], self.field: self._mark(due)
    }  # fmt: skip


def _closes_the_store():
    from postroom.engine import lifecycle

    async def close(store):
        await store.close()

    lifecycle.close_shared = close


def _opened_by_each():
    from postroom.engine import sharing

    class NoTurn:
        async def __aenter__(self): ...

        async def __aexit__(self, *_): ...

    use = sharing._Use
    sharing._Use = lambda thing, users=0: use(thing, users, NoTurn())


def _cursors_are_left():
    from postroom.stores.mongo.change_stream import ChangeStream

    async def forget(self):
        self._session, self._cursor = None, 0

    ChangeStream._drop = forget


def _never_deep():
    from postroom.stores.mongo import read_past_keys

    read_past_keys._note_deep = lambda depths, found, busy: False
    read_past_keys._LEAST = 1_000_000


def _never_to_the_end():
    from postroom.stores.mongo import read_past_keys

    look_into = read_past_keys._look_into

    async def shallow(db, ready, deep, busy, depths, rows, session):
        depths.rest_until = float("inf")
        return await look_into(db, ready, deep, busy, depths, rows, session)

    read_past_keys._look_into = shallow


def _prunes_whatever_it_has_seen():
    from postroom.stores.mongo import prune as module

    async def prune(db, streams, older_than_seconds, limit):
        removed = 0
        for stream in streams:
            ids = await module._old(db, stream, older_than_seconds, limit)
            removed += (await db.outbox.delete_many({"_id": {"$in": ids}})).deleted_count
        return removed

    module.prune = prune


def _accepted_first():
    from postroom.stores.mongo.handler_transactions import DeferredWrites

    finish = DeferredWrites.finish

    async def marks_first(self):
        for acceptance in self._acceptances:
            await self._writes.accept(acceptance)
        await finish(self)

    DeferredWrites.finish = marks_first


def _mended_in_the_beat():
    from postroom.engine.relay.block_repair import BlockRepair
    from postroom.engine.relay.heartbeat import Heartbeat

    beat = Heartbeat.heartbeat

    async def beat_and_mend(self):
        await beat(self)
        context = self._context
        lanes, context.to_repair = context.to_repair, set()
        await BlockRepair(context)._repair(lanes)

    Heartbeat.heartbeat = beat_and_mend


MONGO_MUTANTS = {
    "mended-in-the-beat": Mutant(
        "L6", "the heartbeat waits until blocks are mended", _mended_in_the_beat,
        tests=("tests/scenario/test_block_repair.py::test_a_mend_that_hangs_holds_up_no_heartbeat",),
    ),
    "mongo-prunes-replayed": Mutant(
        "G2", "prune deletes what was replayed since it looked, in MongoDB",
        _prunes_whatever_it_has_seen,
        tests=(WINDOWS + "test_an_event_that_is_replayed_while_it_is_pruned_is_kept",),
    ),
    "mongo-accepted-first": Mutant(
        "H2", "a handler's event is accepted before what it has added is written", _accepted_first,
        tests=(
            WINDOWS + "test_a_crash_while_a_handlers_work_is_written_loses_none_of_its_events",
        ),
    ),
    "mongo-never-deep": Mutant(
        "D1", "a read walks over all that waits behind a key in flight", _never_deep,
        tests=(COST + "test_what_waits_behind_a_key_in_flight_costs_a_read_nothing",),
    ),
    "mongo-never-to-the-end": Mutant(
        "P1", "what waits behind a deep backlog is not found while its key hangs",
        _never_to_the_end,
        tests=(COST + "test_what_waits_behind_a_key_in_flight_costs_a_read_nothing",),
    ),
    "mongo-cursors-left": Mutant(
        "D1", "a change stream's cursor is left on the server", _cursors_are_left,
        tests=(WAKE + "test_three_relays_on_one_store_have_one_cursor",),
    ),
    "mongo-all-or-nothing": Mutant(
        "G7", "one document that cannot be changed stops all embedded events", _all_or_nothing,
        tests=(ODD + "test_a_document_that_cannot_be_changed_is_set_aside_and_named",),
    ),
    "mongo-no-room": Mutant(
        "G2", "the events of a full document are never collected", _no_room_no_event,
        tests=(ODD + "test_a_document_that_is_full_is_served_and_so_are_its_neighbours",),
    ),
    "mongo-no-pause": Mutant(
        "G7", "a document that cannot be changed is tried at every look", _tried_at_every_look,
        tests=(
            ODD + "test_a_document_that_cannot_be_changed_is_set_aside_and_named",
            ODD + "test_the_pause_of_a_document_grows",
        ),
    ),
    "mongo-another-codec": Mutant(
        "G2", "a reconciler compares ids that were read in two ways", _another_codec,
        tests=(RECONCILER_ODD + "test_documents_are_found_again_whatever_their_id_holds",),
    ),
    "mongo-raw-marks": Mutant(
        "G7", "a acceptance of a document is taken for a query", _raw_marks,
        tests=(RECONCILER_ODD + "test_a_mark_may_hold_anything",),
    ),
    "mongo-closes-the-store": Mutant(
        "G7", "a reconciler closes the store of a relay", _closes_the_store,
        tests=(RECONCILER_ODD + "test_a_store_that_a_relay_uses_stays_open",),
    ),
    "opened-by-each": Mutant(
        "D1", "relays that start together each open their store", _opened_by_each,
        tests=("tests/unit/test_sharing.py::test_relays_that_start_together_open_their_store_once",),
    ),
    "mongo-believes-documents": Mutant(
        "G7", "a document with a missing field is believed to be an event", _believes_documents,
        tests=(
            HOSTILE + "test_a_document_that_cannot_be_read_becomes_a_dead_letter_and_costs_nobody",
        ),
    ),
    "mongo-lanes-once": Mutant(
        "L1", "leases that were deleted are not made anew", _lanes_made_once,
        tests=(HOSTILE + "test_leases_that_were_deleted_are_made_anew",),
    ),
    "mongo-host-clock": Mutant(
        "L1", "a lease ends by the clock of the relay's host", _host_clock,
        tests=("tests/scenario/test_wrong_clock.py",),
    ),
    "mongo-no-fence": Mutant(
        "L2", "no fence, in MongoDB", _no_fence,
        tests=(STORE + "test_a_stale_token_settles_nothing",),
    ),
    "mongo-fence-reads": Mutant(
        "L2", "the fence only reads the leases, in MongoDB", partial(_fence_without, writes=False),
        tests=(FAULTS + "test_a_lane_in_the_middle_of_a_settle_cannot_be_taken",),
    ),
    "mongo-fence-no-token": Mutant(
        "L2", "the fence does not ask for the token, in MongoDB", partial(_fence_without, "token"),
        tests=(STORE + "test_a_stale_token_settles_nothing",),
    ),
    "mongo-fence-no-expiry": Mutant(
        "L2", "the fence does not ask for the time, in MongoDB", partial(_fence_without, "until"),
        tests=(STORE + "test_an_expired_lease_settles_nothing",),
    ),
    "mongo-fence-no-owner": Mutant(
        "L2", "the fence does not ask for the owner, in MongoDB", partial(_fence_without, "owner"),
        tests=(STORE + "test_a_thief_of_the_token_settles_nothing",),
    ),
    "mongo-no-transaction": Mutant(
        "L2", "a settle is not one transaction, in MongoDB", _transactions_in_parts,
        tests=(SERVER + "test_a_batch_takes_five_round_trips_whatever_its_size",),
    ),
    "mongo-lost-commit": Mutant(
        "L5", "a retake lets a lost commit go on, in MongoDB", _lost_commits_go_on,
        tests=(FAULTS + "test_a_retake_ends_the_transaction_whose_commit_was_lost",),
    ),
    "mongo-dead-sessions": Mutant(
        "L2", "what a dead relay left open keeps its lanes, in MongoDB",
        _the_dead_keep_their_lanes,
        tests=(FAULTS + "test_the_lanes_of_a_relay_that_died_in_a_settle_are_free_after_its_lease",),
    ),
    "mongo-no-numbers": Mutant(
        "W6", "events of one cluster time are not numbered", _no_numbers,
        tests=(STORE + "test_a_lane_is_read_in_the_order_of_writing",),
    ),
    "mongo-clock": Mutant(
        "G4", "the clock of a standalone goes back with the server's", _clock_goes_back,
        tests=(WRITES + "test_the_clock_of_a_standalone_never_goes_back",),
    ),
    "mongo-gaps": Mutant(
        "R1", "a walk without a snapshot is believed", _no_snapshot,
        tests=(SERVER + "test_a_read_without_a_snapshot_leaves_nobody_behind",),
    ),
    "mongo-sessions": Mutant(
        "L5", "no sessions during an election is taken for good", _sessions_are_no_more,
        tests=(PARTS + "test_what_an_error_means",),
    ),
    "mongo-autocommit": Mutant(
        "W1", "an event is added without a transaction, in MongoDB", _autocommit,
        tests=(WRITES + "test_autocommit_advice_names_the_way_without_transactions",),
    ),
    "mongo-any-database": Mutant(
        "G1", "an event is added where no outbox is, in MongoDB", _any_database,
        tests=(WRITES + "test_a_database_without_an_outbox_is_refused",),
    ),
    "mongo-duplicate": Mutant(
        "W5", "a duplicate is written over the event, in MongoDB", _duplicates_overwrite,
        tests=(WRITES + "test_events_can_be_added_without_a_transaction_by_choice",),
    ),
    "mongo-taken-out-first": Mutant(
        "G2", "an embedded event is taken out before it is in the outbox", _taken_out_first,
        tests=(EMBEDDED + "test_a_collector_that_is_killed_at_any_step_loses_and_repeats_nothing",),
    ),
    "mongo-placed-late": Mutant(
        "G4", "an embedded event gets its place from whoever copies it", _placed_by_whoever_copies,
        tests=(EMBEDDED + "test_whoever_copies_an_event_gives_it_the_same_place",),
    ),
    "mongo-results-first": Mutant(
        "G3", "the reconciler asks for results before it asks the outbox", _results_first,
        tests=(RECONCILER + "test_results_are_asked_for_after_the_outbox",),
    ),
    "mongo-blind-acceptance": Mutant(
        "G3", "the reconciler writes its acceptance over a newer one", _blind_mark,
        tests=(RECONCILER + "test_the_mark_of_a_newer_event_is_not_written_over",),
    ),
    "mongo-keys-in-passing": Mutant(
        "I3", "keys of stored messages are read without a snapshot, in MongoDB", _keys_in_passing,
        tests=(SERVER + "test_no_key_is_missed_while_its_event_moves",),
    ),
    "mongo-window": Mutant(
        "G3", "a reconciler's window may be longer than the retention", _window_unchecked,
        tests=(RECONCILER + "test_a_window_must_be_shorter_than_done_events_are_kept",),
    ),
}  # fmt: skip
