"""The bugs that a first implementation gets wrong, each with the machine that must notice it.

A mutant patches the package in a process of its own. `sim` is the simulation with the kinds of
faults given (None: all); a test is run by pytest in that process.
"""

from tests.mutants.again import AGAIN_MUTANTS
from tests.mutants.blocks import BLOCK_MUTANTS
from tests.mutants.brokers import BROKER_MUTANTS
from tests.mutants.codec import CODEC_MUTANTS
from tests.mutants.consumers import CONSUMERS_MUTANTS
from tests.mutants.costs import COST_MUTANTS
from tests.mutants.delivery import DELIVERY_MUTANTS
from tests.mutants.effects import EFFECT_MUTANTS
from tests.mutants.history import HISTORY_MUTANTS
from tests.mutants.kafka import KAFKA_MUTANTS
from tests.mutants.leases import LEASES_MUTANTS
from tests.mutants.leaving import LEAVING_MUTANTS
from tests.mutants.lifecycle import LIFECYCLE_MUTANTS
from tests.mutants.mongo import MONGO_MUTANTS
from tests.mutants.mongo_costs import MONGO_COST_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.mysql import MYSQL_MUTANTS
from tests.mutants.operations import OPERATIONS_MUTANTS
from tests.mutants.pauses import PAUSES_MUTANTS
from tests.mutants.ports import PORT_MUTANTS
from tests.mutants.postgres import POSTGRES_MUTANTS
from tests.mutants.rabbitmq import RABBIT_CONSUMER_MUTANTS
from tests.mutants.receipts import RECEIPT_MUTANTS
from tests.mutants.repairs import REPAIR_MUTANTS
from tests.mutants.rows import ROW_MUTANTS
from tests.mutants.scopes import SCOPE_MUTANTS
from tests.mutants.searches import SEARCH_MUTANTS
from tests.mutants.set_back import SET_BACK_MUTANTS
from tests.mutants.silence import SILENCE_MUTANTS
from tests.mutants.stored_operations import STORED_OPERATIONS_MUTANTS
from tests.mutants.strangers import STRANGER_MUTANTS
from tests.mutants.upgrades import UPGRADE_MUTANTS
from tests.mutants.waiting import WAITING_MUTANTS

CONTRACT = "tests/contract/test_store_sqlite.py"
MEMORY = "tests/contract/test_store_memory.py"
BREAKER = "tests/unit/test_breaker.py::"


def _no_fence():
    from postroom.stores.memory.store import MemoryStore

    MemoryStore.fence = lambda self, settlement: set(settlement.leases)


def _claim_by_row():
    """Every relay reads all lanes, and what one has read no other one reads for a lease."""
    from postroom.engine.relay.lanes import LaneKeeper
    from postroom.record import LANES
    from postroom.stores.memory.store import MemoryStore

    read, lease_us = MemoryStore.read, 30_000_000

    async def claim(self, question):
        claims, now = self.__dict__.setdefault("_claims", {}), self.now_us()
        question = question._replace(owner=None, rows=1_000, per_lane=1_000)
        found = [r for r in await read(self, question) if claims.get(r.seq, 0) <= now][:10]
        claims.update((record.seq, now + lease_us) for record in found)
        return found

    MemoryStore.read = claim
    MemoryStore.fence = lambda self, settlement: set(settlement.leases)
    LaneKeeper.may_publish = lambda self, lane, now, token=None: True
    LaneKeeper.readable = lambda self, now: list(range(LANES))
    LaneKeeper.tokens = lambda self, lanes=None: dict.fromkeys(
        range(LANES) if lanes is None else lanes, 1
    )


def _no_fence_sqlite():
    from postroom.stores.sqlite import blocks, settle

    blocks.held_lanes = settle.held_lanes = lambda db, stream, owner, leases, now: set(leases)


def _fence_without_expiry_sqlite():
    from postroom.stores.sqlite import leases

    _rewrite("settle_fence", " AND until > :now", " AND :now > 0")
    assert leases


def _settle_before_confirm():
    from postroom.engine.relay.worker import Worker

    publish = Worker._publish

    async def hasty(self, batch):
        self.flight.confirm(batch)
        await publish(self, batch)

    Worker._publish = hasty


def _block_in_memory():
    from postroom.stores.memory.tables import Tables

    Tables.block = lambda self, record: None


def _block_in_memory_sqlite():
    from postroom.stores.sqlite import settle

    _rewrite("settle_block", "AND key IS NOT NULL", "AND key IS NULL")
    assert settle


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
    from postroom.engine.relay.in_flight import InFlight

    admit = InFlight.admit

    def late(self, records, lanes, now):
        for key in [key for key, run in self._runs.items() if run.closed]:
            del self._runs[key]
        return admit(self, records, lanes, now)

    InFlight.busy_keys = lambda self: []
    InFlight.admit = late


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

    from postroom.engine.relay.in_flight import InFlight

    def at_once(self, record):
        granted = asyncio.get_running_loop().create_future()
        granted.set_result(True)
        return granted

    InFlight.start = at_once


def _whole_batch_charged():
    from postroom.engine.failure_policy import FailurePolicy

    FailurePolicy._unknown = lambda self, record, outcome, *, alone: self._charge(record, outcome)


def _no_accept():
    from postroom.stores.memory.transaction import MemoryTransaction

    async def always(self, acceptance):
        return True

    MemoryTransaction.accept = always


def _no_drain():
    from postroom.engine.relay.lanes import LaneKeeper

    LaneKeeper.drained = lambda self, busy: {
        lane: held.token for lane, held in self.held.items() if held.draining
    }


def _members_own_lanes():
    from postroom.stores.memory.store import MemoryStore

    leases = MemoryStore.leases

    async def owners_only(self, stream):
        membership = await leases(self, stream)
        owners = {lease.owner for lease in membership.leases if lease.live}
        return membership._replace(
            members=tuple(m for m in membership.members if m.owner in owners)
        )

    MemoryStore.leases = owners_only


def _no_counter():
    from postroom import outbox

    def unnumbered(tx, rows):
        yield tx.insert(rows)
        return []

    outbox.insert_strict = unnumbered


def _settle_by_publishing_again():
    from postroom.engine.relay.settler import Settler
    from postroom.errors import StoreError

    async def give_up(self, settlement):
        try:
            return await self._context.store.settle(settlement)
        except StoreError:
            return set(settlement.leases)  # as if settled: the events are read and sent again

    assert Settler._commit
    Settler._commit = give_up


def _unhealthy_for_ever():
    from postroom.engine.relay.heartbeat import Heartbeat

    async def nothing(self):
        pass

    Heartbeat._ask_destination = nothing


def _go_on_after_failure():
    from postroom.broker import Verdict
    from postroom.engine.relay.in_flight import InFlight

    def step(self, run, record, outcome):
        run.next += 1
        self._open -= 1
        if outcome.verdict is Verdict.CONFIRMED:
            self._done.append(record)
        elif run.failed is None:
            run.failed = (record, outcome)

    InFlight._step = step


def _outage_is_a_failure():
    from postroom.broker import Verdict
    from postroom.engine.failure_policy import FailurePolicy

    judge = FailurePolicy.decide

    def strict(self, record, outcome, *, alone):
        if outcome.verdict is Verdict.OUTAGE:
            return self._charge(record, outcome)
        return judge(self, record, outcome, alone=alone)

    FailurePolicy.decide = strict


def _park_without_a_block_sqlite():
    _rewrite("settle_parked", "AND EXISTS", "OR EXISTS")


def _park_what_is_processing():
    """A store cannot park it: it is read and settled again at once, for as long as the block stands."""
    from postroom.engine.relay.in_flight import InFlight

    admit = InFlight.admit

    def hopeful(self, records, lanes, now):
        before = len(self._returned)
        batch = admit(self, records, lanes, now)
        self._parked += self._returned[before:]
        del self._returned[before:]
        return batch

    InFlight.admit = hopeful


def _believe_in_cancellation():
    """A future that the driver cancelled ends the loop that waited for it."""
    from postroom.engine.relay import context, worker

    context.is_cancelled = worker.is_cancelled = lambda: True


def _tries_wasted():
    from postroom.engine.breaker import Breaker

    Breaker.untried = lambda self, who: None


def _rewrite(name, old, new):
    """Change the text of one SQL statement of the SQLite store."""
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    assert old in queries[name], f"{name}.sql no longer says {old!r}"
    queries[name] = queries[name].replace(old, new)


MUTANTS = {
    "no-fence": Mutant(
        "L2", "a relay past its lease settles all the same", _no_fence,
        sim=("crash", "pause", "slow_store", "fail", "poison"),
    ),
    "claim-by-row": Mutant(
        "G4", "relays share rows, as workers on a queue do, and not lanes", _claim_by_row,
        sim=("rollback",),
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
        "B5", "what was confirmed behind a failure is settled", _go_on_after_failure,
        sim=("fail", "poison", "hasty"),
    ),
    "outage-charged": Mutant(
        "P2", "an outage of the broker spends attempts", _outage_is_a_failure, sim=("outage",)
    ),
    "park-processing": Mutant(
        "R2", "what a dead relay left processing behind a block is settled in circles",
        _park_what_is_processing, sim=("killer", "delay", "poison"),
        tests=("tests/scenario/test_regressions.py",),
    ),
    "driver-cancels": Mutant(
        "P2", "a call that the driver cancels ends the relay's own loop",
        _believe_in_cancellation, sim=("cut", "unknown_missing"),
    ),
    "try-wasted": Mutant(
        "P2", "after an outage a try that tells nothing uses up the worker's turn", _tries_wasted,
        sim=("outage", "misconfigured"),
        tests=(f"{BREAKER}test_a_worker_without_an_event_to_try_with_may_try_its_next",),
    ),
    "unwell-for-ever": Mutant(
        "L4", "a relay that gave its lanes back never asks whether the broker is there again",
        _unhealthy_for_ever, sim=("outage", "join"),
    ),
    **AGAIN_MUTANTS,
    **BLOCK_MUTANTS,
    **BROKER_MUTANTS,
    **KAFKA_MUTANTS,
    **HISTORY_MUTANTS,
    **RECEIPT_MUTANTS,
    **LEASES_MUTANTS,
    **LIFECYCLE_MUTANTS,
    **LEAVING_MUTANTS,
    **PAUSES_MUTANTS,
    **PORT_MUTANTS,
    **POSTGRES_MUTANTS,
    **MYSQL_MUTANTS,
    **MONGO_MUTANTS,
    **CONSUMERS_MUTANTS,
    **STORED_OPERATIONS_MUTANTS,
    **STRANGER_MUTANTS,
    **UPGRADE_MUTANTS,
    **WAITING_MUTANTS,
    **DELIVERY_MUTANTS,
    **RABBIT_CONSUMER_MUTANTS,
    **OPERATIONS_MUTANTS,
    **SET_BACK_MUTANTS,
    **SILENCE_MUTANTS,
    **ROW_MUTANTS,
    **REPAIR_MUTANTS,
    **SCOPE_MUTANTS,
    **CODEC_MUTANTS,
    **COST_MUTANTS,
    **SEARCH_MUTANTS,
    **MONGO_COST_MUTANTS,
    **EFFECT_MUTANTS,
}  # fmt: skip
