"""The bugs that a first implementation gets wrong, each with the machine that must notice it.

A mutant patches the package in a process of its own. `sim` is the simulation with the kinds of
faults given (None: all); a test is run by pytest in that process.
"""

from tests.mutants.blocks import BLOCK_MUTANTS
from tests.mutants.brokers import BROKER_MUTANTS
from tests.mutants.mongo import MONGO_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.operations import OPERATIONS_MUTANTS
from tests.mutants.receiving import RECEIVING_MUTANTS

CONTRACT = "tests/contract/test_store_sqlite.py"
MEMORY = "tests/contract/test_store_memory.py"
MYSQL = "tests/contract/test_store_mysql.py"
MYSQL_FENCE = "tests/scenario/test_mysql_fence.py"
POSTGRES_FENCE = "tests/scenario/test_postgres_fence.py"
POSTGRES_FLOOR = "tests/scenario/test_postgres_floor.py"


def _no_fence():
    from postroom.stores.memory.store import MemoryStore

    MemoryStore.fence = lambda self, settlement: set(settlement.leases)


def _no_fence_sqlite():
    from postroom.stores.sqlite import events

    events.held_lanes = lambda db, stream, owner, leases, now: set(leases)


def _fence_without_expiry_sqlite():
    from postroom.stores.sqlite import leasing

    _rewrite("settle_fence", " AND until > :now", " AND :now > 0")
    assert leasing


def _settle_before_confirm():
    from postroom.engine.worker import Worker

    publish = Worker._publish

    async def hasty(self, batch):
        self.flight.confirm(batch)
        await publish(self, batch)

    Worker._publish = hasty


def _block_in_memory():
    from postroom.stores.memory.tables import Tables

    Tables.block = lambda self, record: None


def _block_in_memory_sqlite():
    from postroom.stores.sqlite import events

    _rewrite("settle_block", "AND key IS NOT NULL", "AND key IS NULL")
    assert events


def _cursor():
    from postroom.stores.memory.store import MemoryStore

    read = MemoryStore.read

    async def ahead(self, question):
        seen = self.__dict__.setdefault("_cursors", {})
        found = [r for r in await read(self, question) if r.seq > seen.get(r.lane, 0)]
        for record in found:
            seen[record.lane] = record.seq
        return found

    MemoryStore.read = ahead


def _filter_at_the_end():
    """Nothing is left out when the read starts; at its end, what has no outcome yet is left out."""
    from postroom.engine.flight import Flight

    admit = Flight.admit

    def late(self, records, may_publish, now):
        for key in [key for key, run in self._runs.items() if run.closed]:
            del self._runs[key]
        return admit(self, records, may_publish, now)

    Flight.busy_keys = lambda self: []
    Flight.admit = late


def _unpark_early():
    from postroom.stores.memory.tables import Tables

    def all_at_once(self, stream, key_hash):
        if self.blocks.pop((stream, key_hash), None) is not None:
            for seq in list(self.parked.get((stream, key_hash), ()))[1:]:
                self.move(self.rows[seq], "ready")

    Tables.advance = all_at_once


def _unpark_early_sqlite():
    _rewrite("advance", "ORDER BY seq LIMIT :step", "ORDER BY seq DESC LIMIT :step")


def _processing_ignored():
    from postroom.stores.memory.store import MemoryStore

    read = MemoryStore.read

    async def blind(self, question):
        return [r for r in await read(self, question) if r.state != "processing"]

    MemoryStore.read = blind


def _processing_ignored_sqlite():
    _rewrite("read", "WHERE o.seq IN", "WHERE o.state <> 'processing' AND o.seq IN")


def _attempts_after():
    """The handler starts before its attempt is counted: one that kills the process is never charged."""
    import asyncio

    from postroom.engine.flight import Flight

    def at_once(self, record):
        granted = asyncio.get_running_loop().create_future()
        granted.set_result(True)
        return granted

    Flight.start = at_once


def _whole_batch_charged():
    from postroom.engine.blocks import Judge

    Judge._unknown = lambda self, record, outcome, *, alone: self._charge(record, outcome)


def _no_accept():
    from postroom.stores.memory.transaction import MemoryTransaction

    async def always(self, mark):
        return True

    MemoryTransaction.accept = always


def _no_drain():
    from postroom.engine.lanes import LaneKeeper

    LaneKeeper.drained = lambda self, busy: {
        lane: held.token for lane, held in self.held.items() if held.draining
    }


def _members_own_lanes():
    from postroom.stores.memory.store import MemoryStore

    leases = MemoryStore.leases

    async def owners_only(self, stream):
        roster = await leases(self, stream)
        owners = {lease.owner for lease in roster.leases if lease.live}
        return roster._replace(members=tuple(m for m in roster.members if m.owner in owners))

    MemoryStore.leases = owners_only


def _no_counter():
    from postroom import outbox

    def unnumbered(tx, rows):
        yield tx.insert(rows)
        return []

    outbox._insert_strict = unnumbered


def _settle_by_publishing_again():
    from postroom.engine.worker import Worker
    from postroom.errors import StoreError

    async def give_up(self, settlement):
        try:
            return await self._office.store.settle(settlement)
        except StoreError:
            return set(settlement.leases)  # as if settled: the events are read and sent again

    Worker._commit = give_up


def _unhealthy_for_ever():
    from postroom.engine.tender import Tender

    async def nothing(self):
        pass

    Tender._ask_destination = nothing


def _go_on_after_failure():
    from postroom.broker import Verdict
    from postroom.engine.flight import Flight

    def step(self, run, record, outcome):
        run.next += 1
        self._open -= 1
        if outcome.verdict is Verdict.CONFIRMED:
            self._done.append(record)
        elif run.failed is None:
            run.failed = (record, outcome)

    Flight._step = step


def _outage_is_a_failure():
    from postroom.broker import Verdict
    from postroom.engine.blocks import Judge

    judge = Judge.judge

    def strict(self, record, outcome, *, alone):
        if outcome.verdict is Verdict.OUTAGE:
            return self._charge(record, outcome)
        return judge(self, record, outcome, alone=alone)

    Judge.judge = strict


def _park_without_a_block_sqlite():
    _rewrite("settle_parked", "AND EXISTS", "OR EXISTS")


def _park_what_is_processing():
    """A store cannot park it: it is read and settled again at once, for as long as the block stands."""
    from postroom.engine.flight import Flight

    admit = Flight.admit

    def hopeful(self, records, may_publish, now):
        before = len(self._returned)
        batch = admit(self, records, may_publish, now)
        self._parked += self._returned[before:]
        del self._returned[before:]
        return batch

    Flight.admit = hopeful


def _believe_in_cancellation():
    """A future that the driver cancelled ends the loop that waited for it."""
    from postroom.engine import office, worker

    office.is_cancelled = worker.is_cancelled = lambda: True


def _tries_wasted():
    from postroom.engine.breaker import Breaker

    Breaker.untried = lambda self, who: None


def _rewrite(name, old, new):
    """Change the text of one SQL statement of the SQLite store."""
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    assert old in queries[name], f"{name}.sql no longer says {old!r}"
    queries[name] = queries[name].replace(old, new)


def _rewrite_postgres(old, new):
    """Change the text of the PostgreSQL store's statements and functions, wherever it stands."""
    from postroom.stores import statements
    from postroom.stores.postgres.statements import load_queries

    queries, load = load_queries("postroom_"), statements.load_migrations
    found = [name for name, query in queries.items() if old in query.sql]
    for name in found:
        queries[name] = queries[name]._replace(sql=queries[name].sql.replace(old, new))

    def mutated(package, prefix):
        return tuple(
            step._replace(script=step.script.replace(old, new)) for step in load(package, prefix)
        )

    told = any(old in step.script for step in load("postroom.stores.postgres", "postroom_"))
    assert found or told, f"nothing says {old!r} any more"
    statements.load_migrations = mutated


def _postgres_fence_without_lock():
    _rewrite_postgres("FOR SHARE", "")


def _postgres_fence_key_share():
    _rewrite_postgres("FOR SHARE", "FOR KEY SHARE")


def _postgres_fence_in_the_past():
    _rewrite_postgres("until > clock_timestamp()", "until > transaction_timestamp()")


def _postgres_take_without_lock():
    _rewrite_postgres("ORDER BY lane FOR NO KEY UPDATE", "ORDER BY lane")


def _postgres_naive_floor():
    from postroom.stores.postgres import floor

    async def nobody(db):
        return frozenset()

    floor._writers = nobody


def _postgres_floor_forgets_what_comes_back():
    from postroom.stores.postgres.floor import Floors

    Floors.lower = lambda self, stream, lowest: None


def _rewrite_mysql(name, old, new):
    """Change the text of one SQL statement of the MySQL store."""
    from postroom.stores.mysql.statements import load_queries

    queries = load_queries("postroom_")
    assert old in queries[name], f"{name}.sql no longer says {old!r}"
    queries[name] = queries[name].replace(old, new)


def _mysql_no_fence():
    from postroom.stores.mysql import events

    async def open_door(session, stream, owner, leases):
        await session.run("advance_barrier", stream="", key_hash=b"", barrier=0)  # and BEGIN
        return dict(leases)

    events.fence = open_door


def _mysql_fence_that_reads():
    from postroom.stores.mysql import events
    from postroom.stores.mysql.leasing import pairs

    async def look(session, stream, owner, leases):
        where = {"stream": stream, "owner": owner, **pairs(leases)}
        left = {lane for (lane,) in await session.rows("settle_held", **where)}
        return {lane: token for lane, token in leases.items() if lane in left}

    events.fence = look


def _mysql_fence_without_token():
    for name in ("settle_fence", "settle_held"):
        _rewrite_mysql(name, "AND (lane, token) IN %(held)s ", "")


def _mysql_fence_without_expiry():
    for name in ("settle_fence", "settle_held"):
        _rewrite_mysql(name, "AND until > UTC_TIMESTAMP(6)", "")


def _mysql_fence_without_owner():
    for name in ("settle_fence", "settle_held"):
        _rewrite_mysql(name, "AND owner = %(owner)s ", "")


def _mysql_take_without_lock():
    _rewrite_mysql("take_free", "FOR UPDATE SKIP LOCKED", "")


def _mysql_no_begin():
    from postroom.stores.mysql.session import Session

    execute = Session.execute

    async def at_once(self, text):
        if self._ahead[:1] == ["BEGIN"]:
            self._ahead = self._ahead[1:]
        await execute(self, text)

    Session.execute = at_once


def _mysql_no_rollback():
    from postroom.stores.mysql.session import Session

    async def forgotten(self):
        self._ahead = []

    Session._roll_back = forgotten


def _mysql_operator_looks_first():
    from postroom.stores.mysql import people

    async def hasty(session, ids, lanes, *, finished):
        rows = await session.rows("chosen", ids=tuple(ids), finished=finished) if lanes else ()
        for stream in lanes:
            await session.run("fence_lanes", stream=stream, lanes=tuple(lanes[stream]))
        return [people._Chosen._make(row) for row in rows]

    people._choose = hasty
    _rewrite_mysql("bury", " AND stage <> 'over'", "")


def _mysql_block_in_memory():
    _rewrite_mysql("settle_block", "AND o.`key` IS NOT NULL", "AND o.`key` IS NULL")


def _mysql_park_without_a_block():
    _rewrite_mysql("settle_parked", "AND EXISTS (", "OR 0 = (")


def _mysql_unpark_all_wrong():
    _rewrite_mysql("advance_next", "ORDER BY seq", "ORDER BY seq DESC")


def _mysql_read_of_anybody():
    _rewrite_mysql("read_held", "AND EXISTS (", "OR EXISTS (")


def _mysql_fence_waits_for_nobody():
    from postroom.stores.mysql import events

    fence = events.fence

    async def committed(session, stream, owner, leases):
        found = await fence(session, stream, owner, leases)
        await session.execute("COMMIT")
        return found

    events.fence = committed


MUTANTS = {
    "no-fence": Mutant(
        "L2", "a relay past its lease settles all the same", _no_fence,
        sim=("crash", "pause", "slow_store", "fail", "poison"),
    ),
    "no-fence-sqlite": Mutant(
        "L2", "the same, in SQLite's settle", _no_fence_sqlite, tests=(CONTRACT,)
    ),
    "no-expiry-sqlite": Mutant(
        "L2", "the fence looks at the token, not at the clock", _fence_without_expiry_sqlite,
        tests=(CONTRACT,),
    ),
    "settle-first": Mutant(
        "G2", "settled before the broker has confirmed", _settle_before_confirm, sim=("fail",)
    ),
    "block-in-memory": Mutant(
        "B1", "a failed head is held back in memory only", _block_in_memory, sim=("fail",)
    ),
    "block-in-memory-sqlite": Mutant(
        "B1", "the same, in SQLite's settle", _block_in_memory_sqlite, tests=(CONTRACT,)
    ),
    "cursor": Mutant("R1", "reads go on behind the last number seen", _cursor, sim=("rollback",)),
    "filter-at-end": Mutant(
        "R3", "what is in flight is filtered when the read returns", _filter_at_the_end,
        sim=("rollback",),
    ),
    "unpark-early": Mutant(
        "B3", "followers come back before the block is gone", _unpark_early,
        sim=("fail", "poison"),
    ),
    "unpark-early-sqlite": Mutant(
        "B3", "the same, in SQLite", _unpark_early_sqlite, tests=(CONTRACT,)
    ),
    "park-for-ever-sqlite": Mutant(
        "B3", "followers are parked although their block is gone", _park_without_a_block_sqlite,
        tests=(CONTRACT,),
    ),
    "processing-ignored": Mutant(
        "R2", "what a dead relay left processing is never read", _processing_ignored,
        sim=("crash", "killer"),
    ),
    "processing-ignored-sqlite": Mutant(
        "R2", "the same, in SQLite's read", _processing_ignored_sqlite, tests=(CONTRACT,)
    ),
    "attempts-after": Mutant(
        "H1", "attempts are counted after the handler", _attempts_after, sim=("killer",)
    ),
    "whole-batch-charged": Mutant(
        "P3", "an unknown outcome is charged to every event of the batch", _whole_batch_charged,
        sim=("breaker",),
    ),
    "no-accept": Mutant(
        "H2", "no accept in the handler's transaction", _no_accept, sim=("crash", "pause")
    ),
    "no-drain": Mutant(
        "L4", "lanes are handed over with events in flight", _no_drain, sim=("join", "leave")
    ),
    "members-own-lanes": Mutant(
        "L4", "a relay without a lane is not seen by the others", _members_own_lanes,
        sim=("join",),
    ),
    "no-counter": Mutant(
        "W9", "strict events are not numbered", _no_counter,
        tests=("tests/contract/test_transactions_sqlite3.py",),
    ),
    "publish-again": Mutant(
        "L5", "a settle that failed is answered by publishing again", _settle_by_publishing_again,
        sim=("store_conflict", "store_lost"),
    ),
    "go-on": Mutant(
        "B5", "what was confirmed behind a failure is settled", _go_on_after_failure, tests=(
            "tests/unit/test_flight.py",
        ),
    ),
    "outage-charged": Mutant(
        "P2", "an outage of the broker spends attempts", _outage_is_a_failure, sim=("outage",)
    ),
    "park-processing": Mutant(
        "R2", "what a dead relay left processing behind a block is settled in circles",
        _park_what_is_processing, tests=("tests/scenario/test_regressions.py",),
    ),
    "driver-cancels": Mutant(
        "P2", "a call that the driver cancels ends the relay's own loop",
        _believe_in_cancellation, sim=("cut", "unknown_missing"),
    ),
    "try-wasted": Mutant(
        "P2", "after an outage a try that tells nothing uses up the worker's turn", _tries_wasted,
        tests=("tests/scenario/test_regressions.py",),
    ),
    "unwell-for-ever": Mutant(
        "L4", "a relay that gave its lanes back never asks whether the broker is there again",
        _unhealthy_for_ever, sim=("outage", "join"),
    ),
    "pg-fence-exists": Mutant(
        "L2", "the fence reads the lease rows without a lock", _postgres_fence_without_lock,
        tests=(POSTGRES_FENCE,),
    ),
    "pg-fence-key-share": Mutant(
        "L2", "the fence takes a lock that a change of the lease does not mind",
        _postgres_fence_key_share, tests=(POSTGRES_FENCE,),
    ),
    "pg-fence-now": Mutant(
        "L2", "the lease is judged by the clock at the start of the transaction",
        _postgres_fence_in_the_past, tests=(POSTGRES_FENCE,),
    ),
    "pg-take-unlocked": Mutant(
        "L2", "a lane is chosen first and taken later, without a lock in between",
        _postgres_take_without_lock, tests=(POSTGRES_FENCE,),
    ),
    "pg-floor-naive": Mutant(
        "R6", "the floor is the last number given, whoever is still writing",
        _postgres_naive_floor, tests=(POSTGRES_FLOOR,),
    ),
    "pg-floor-forgets": Mutant(
        "R6", "an event that comes back from waiting stays below the floor",
        _postgres_floor_forgets_what_comes_back, tests=(POSTGRES_FLOOR,),
    ),
    "my-no-fence": Mutant("L2", "no fence, in MySQL", _mysql_no_fence, tests=(f"{MYSQL}::TestMysqlStore::test_operators_take_the_lane_from_its_owner",)),
    "my-fence-reads": Mutant(
        "L2", "the fence reads the lease rows without a lock, in MySQL", _mysql_fence_that_reads,
        tests=(f"{MYSQL_FENCE}::test_a_lane_cannot_be_taken_between_the_check_and_the_commit",),
    ),
    "my-fence-commits": Mutant(
        "L2", "the fence is a transaction of its own, in MySQL", _mysql_fence_waits_for_nobody,
        tests=(f"{MYSQL_FENCE}::test_a_lane_cannot_be_taken_between_the_check_and_the_commit",),
    ),
    "my-fence-no-token": Mutant(
        "L2", "the fence does not ask for the token, in MySQL", _mysql_fence_without_token,
        tests=(f"{MYSQL}::TestMysqlStore::test_a_stale_token_mends_nothing",),
    ),
    "my-fence-no-expiry": Mutant(
        "L2", "the fence does not ask for the time, in MySQL", _mysql_fence_without_expiry,
        tests=(f"{MYSQL}::TestMysqlStore::test_an_expired_lease_settles_nothing",),
    ),
    "my-fence-no-owner": Mutant(
        "L2", "the fence does not ask for the owner, in MySQL", _mysql_fence_without_owner,
        tests=(f"{MYSQL}::TestMysqlStore::test_a_stale_token_mends_nothing",),
    ),
    "my-take-unlocked": Mutant(
        "L1", "a lane is chosen first and taken later, without a lock in between, in MySQL",
        _mysql_take_without_lock, tests=(f"{MYSQL_FENCE}::test_a_lane_cannot_be_taken_between_the_check_and_the_commit",),
    ),
    "my-no-begin": Mutant(
        "L2", "every statement of a settle commits by itself, in MySQL", _mysql_no_begin,
        tests=(f"{MYSQL_FENCE}::test_a_lane_cannot_be_taken_between_the_check_and_the_commit",),
    ),
    "my-no-rollback": Mutant(
        "L5", "a lock wait that ran out leaves its transaction open, in MySQL", _mysql_no_rollback,
        tests=(MYSQL_FENCE,),
    ),
    "my-operator-looks-first": Mutant(
        "L7", "an operator's verb decides before it has the lanes, in MySQL",
        _mysql_operator_looks_first, tests=(f"{MYSQL_FENCE}::test_an_operator_waits_for_a_settle_and_changes_what_it_left",),
    ),
    "my-block-in-memory": Mutant(
        "B1", "a failed head blocks its key in memory only, in MySQL", _mysql_block_in_memory,
        tests=(f"{MYSQL}::TestMysqlStore::test_the_details_of_an_event",),
    ),
    "my-park-for-ever": Mutant(
        "B3", "followers are parked although their block is gone, in MySQL",
        _mysql_park_without_a_block, tests=(f"{MYSQL}::TestMysqlStore::test_nothing_is_parked_behind_a_key_that_is_free",),
    ),
    "my-unpark-wrong": Mutant(
        "B3", "the last followers come back first, in MySQL", _mysql_unpark_all_wrong,
        tests=(f"{MYSQL}::TestMysqlStore::test_a_long_queue_drains_in_order_with_new_arrivals_and_a_second_failure",),
    ),
    "my-read-of-anybody": Mutant(
        "L7", "a lane is read by who no longer holds it, in MySQL", _mysql_read_of_anybody,
        tests=(f"{MYSQL}::TestMysqlStore::test_a_lane_that_its_reader_does_not_hold_brings_nothing",),
    ),
    **BLOCK_MUTANTS,
    **BROKER_MUTANTS,
    **MONGO_MUTANTS,
    **RECEIVING_MUTANTS,
    **OPERATIONS_MUTANTS,
}  # fmt: skip
