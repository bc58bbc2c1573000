"""Bugs of a first inbox or consumer, each caught by an effect table that would show a double."""

import asyncio

from tests.mutants.mutant import Mutant

CONSUMER = "tests/contract/test_consumer_memory.py"
BATCH = f"{CONSUMER}::TestMemory"
BATCHES = "tests/scenario/test_consumer_batches.py"
EVENTS_TOGETHER = "tests/unit/test_handlers_batch.py"
REGRESSIONS = "tests/scenario/test_regressions.py"
POISONED = "test_poison_in_a_batch_costs_its_neighbours_nothing"
COMMITS = "test_a_handler_that_commits_commits_nothing_that_has_not_happened"
ROLLS_BACK = "test_a_handler_that_rolls_back_takes_nothing_from_its_neighbours"
FAULTS = "tests/scenario/test_consumer_faults.py"
INBOX = "tests/contract/test_inbox_concurrent.py"
SQLITE = "tests/contract/test_transactions_sqlite3.py"
STRICT = "tests/scenario/test_inbox_strict.py"
THOUSAND = "test_a_thousand_deliveries_to_eight_workers_take_effect_once"
MESSAGES = "tests/unit/test_consumer_parts.py"


def _burial_left_half():
    from postroom.engine.consumer.durable_inbox import DurableInbox

    async def left(self, ids):
        pass

    DurableInbox._finish_burials = left


async def _effect_alone(run, handler, record, acceptance, tx, prefix):
    from postroom.engine.handlers import runs

    run.is_repeat = False
    run.phase = runs.Phase.RUNNING
    await handler.call(record, tx)


def _accept_last():
    from postroom import transactions
    from postroom.engine.handlers import runs

    async def effect(run, handler, record, acceptance, tx, prefix):
        await _effect_alone(run, handler, record, acceptance, tx, prefix)
        await transactions.resolve(tx, prefix=prefix).accept(acceptance)

    runs.effect = effect


def _accept_outside():
    """Accepted and committed first, in a transaction of its own."""
    from postroom import transactions
    from postroom.engine.handlers import dispatch, runs

    run_async = runs.run_async

    async def two_steps(handler, record, acceptance, factory, *, limit_seconds, prefix):
        async with factory() as tx:
            if not await transactions.resolve(tx, prefix=prefix).accept(acceptance):
                return runs.REPEAT
        return await run_async(
            handler, record, acceptance, factory, limit_seconds=limit_seconds, prefix=prefix
        )

    dispatch.run_async, runs.effect = two_steps, _effect_alone


def _batch_accept_outside():
    """All of a batch accepted and committed first."""
    from postroom import transactions
    from postroom.engine.handlers import batch_runs, dispatch

    run_together = batch_runs.run_together

    async def two_steps(jobs, factory, limit_seconds, prefix, *rest):
        async with factory() as tx:
            for job in jobs:
                await transactions.resolve(tx, prefix=prefix).accept(job.acceptance)
        return await run_together(jobs, factory, limit_seconds, prefix, *rest)

    dispatch.run_together, batch_runs.effect = two_steps, _effect_alone


def _batch_accept_first():
    """All of a batch accepted in its transaction before the first handler runs."""
    from postroom import transactions
    from postroom.engine.handlers import batch_runs, dispatch

    run_together = batch_runs.run_together

    async def all_first(jobs, factory, limit_seconds, prefix, *rest):
        news = {}

        async def effect(run, handler, record, acceptance, tx, prefix):
            if not news:
                adapter = transactions.resolve(tx, prefix=prefix)
                for job in jobs:
                    news[job.acceptance] = await adapter.accept(job.acceptance)
            if news[acceptance]:
                await _effect_alone(run, handler, record, acceptance, tx, prefix)

        batch_runs.effect = effect
        return await run_together(jobs, factory, limit_seconds, prefix, *rest)

    dispatch.run_together = all_first


def _batch_ends(outcome):
    """What is said of every message of a batch that was rolled back."""
    from postroom.engine.consumer.batches import Batches

    together = Batches._together

    async def judged(self, batch):
        return await together(self, batch) or [outcome] * len(batch)

    Batches._together = judged


def _batch_acked_anyway():
    from postroom.broker import CONFIRMED

    _batch_ends(CONFIRMED)


def _batch_all_charged():
    from postroom.broker import Outcome, Verdict

    _batch_ends(Outcome(Verdict.FAILED, "something in its batch failed"))


def _batch_trusts_handlers():
    from postroom.transaction import Standing
    from postroom.transactions.statements import _Statements

    def standing(self, proofs):
        yield from ()
        return Standing.HELD

    _Statements._standing = standing


def _runs_trust_handlers():
    from postroom.engine.handlers import runs, thread_runs

    runs.may_commit = thread_runs.may_commit = lambda standing, names: True


def _hangs_are_forgotten():
    from postroom.engine.handlers.threads import Threads

    Threads.watch = lambda self, *given, **options: None


def _sync_context_drops_history():
    from postroom.engine.handlers.context import SyncContext

    SyncContext.add = lambda self, event: self._outbox.add(self.tx, event)


def _batch_one_key_twice():
    from postroom.engine.consumer.key_queues import KeyQueues

    put = KeyQueues.put

    def each_for_itself(self, received):
        own = received.record._replace(key_hash=str(received.record.seq).encode())
        put(self, received._replace(record=own))

    KeyQueues.put = each_for_itself


def _batch_not_begun():
    from postroom.broker import UNSENT
    from postroom.engine.handlers.handlers import Handlers

    async def trusting(self, records, reporter):
        async with self._turn_of_store():
            ends = await self._run_together(records, reporter.may_go_on)
        return ends or [UNSENT] * len(records)

    Handlers._handle_several = trusting


def _batch_of_events_charged():
    from postroom.broker import Outcome, Verdict
    from postroom.engine.handlers.handlers import Handlers

    run_together = Handlers._run_together

    async def blaming(self, records, may_go_on):
        failed = Outcome(Verdict.FAILED, "something in its batch failed")
        return await run_together(self, records, may_go_on) or [failed] * len(records)

    Handlers._run_together = blaming


def _batch_lanes_unasked():
    from postroom.engine.relay.worker import Worker

    Worker.may_go_on = lambda self, record: True


def _batch_together_again():
    from postroom.engine.handlers.runtime import HandlerRuntime

    HandlerRuntime.part = lambda self, ids: None


def _batch_thread_forgotten():
    from postroom.engine.handlers import dispatch

    run = dispatch.run_together_in_thread

    async def forgetful(*args):
        *given, _held, refused = args
        return await run(*given, set(), refused)

    dispatch.run_together_in_thread = forgetful


def _cancel_first():
    from postroom.sources.rabbitmq.source import RabbitSource

    async def cancel(self):
        session = self._session
        session.leave_the_rest()
        tag, session._tag = session._tag, None
        await session._channel.basic_cancel(tag)

    RabbitSource.pause = cancel


def _ack_before_commit():
    from postroom.engine.consumer.processor import MessageProcessor

    finish = MessageProcessor.finish

    async def hasty(self, received):
        received.delivery.ack()
        return await finish(self, received)

    MessageProcessor.finish = hasty


def _ack_before_kept():
    from postroom.engine.consumer.consumer import Consumer

    keep = Consumer._keep

    async def hasty(self, bench, messages):
        for received in messages:
            received.delivery.ack()
        await keep(self, bench, messages)

    Consumer._keep = hasty


def _received_is_done():
    from postroom.transactions.dialects import Sqlite

    made = Sqlite.__init__

    def init(self, style, prefix):
        made(self, style, prefix)
        assert "WHERE state <> 'done'" in self._accept.sql
        sql = self._accept.sql.replace("WHERE state <> 'done'", "WHERE false")
        self._accept = self._accept._replace(sql=sql)

    Sqlite.__init__ = init


def _newness_from_on_duplicate_key():
    from postroom.transactions.dialect_mysql import Mysql

    def accept(self, driver, acceptance):
        sql = self._accept.sql + " ON DUPLICATE KEY UPDATE consumer = VALUES(consumer)"
        changed = yield driver.change(sql, self._acceptance(acceptance))
        return changed == 1

    Mysql.accept = accept


def _requeue_past_the_key():
    from postroom.broker import Verdict
    from postroom.engine.consumer.key_queues import KeyQueues

    async def work(self, key):
        queue, trials = self._queues[key], self._finish.__self__
        while queue:
            received = queue.popleft()
            outcome = await trials._try(received.record)
            if outcome.verdict is Verdict.CONFIRMED:
                trials._context.counts.done += 1
                trials._context.counts.repeats += bool(outcome.error)
                received.delivery.ack()
                self._on_left(1)
            else:
                await asyncio.sleep(0.01)
                queue.append(received)
        del self._queues[key]

    KeyQueues._work = work


def _commit_past_a_gap():
    from postroom.sources.kafka.offsets import Partition

    def done(self, offset):
        self._open.pop(offset, None)
        self._next = max(self._next or 0, offset + 1)

    Partition.done = done


def _poison_thrown_away():
    from postroom.engine.consumer.context import ConsumerContext

    async def bury(self, received, reason, history=None):
        self.counts.dead += 1
        return True

    ConsumerContext.bury = bury


def _gap_taken():
    from postroom.engine.handlers import runs, thread_runs
    from postroom.transaction import Counter

    def admit(tx, gate):
        name, key_hash, number, _ = gate
        (value,) = yield tx.count_up([Counter(name, key_hash, 1)])
        yield tx.count_up([Counter(name, key_hash, max(number - value, 0))])
        return value <= number

    runs.admit = thread_runs.admit = admit


def _a_full_disk_is_charged():
    from postroom.engine.handlers import runs

    runs.has_no_room = lambda error: False


def _a_full_disk_is_final():
    from postroom.engine.consumer import consumer, context
    from postroom.errors import StoreError

    consumer.is_passing = context.is_passing = lambda error: isinstance(error, StoreError)


def _a_key_goes_on_behind_what_no_row_holds():
    from postroom.engine.consumer import processor
    from postroom.engine.consumer.consumer import Consumer

    bury = processor.ConsumerContext.bury

    async def gives_up(self, received, reason, *given, **more):
        return await bury(self, received, reason, *given, **more) or True

    processor.ConsumerContext.bury = gives_up
    Consumer._may_be_kept = lambda self, received: not received.delivery.is_lost


CONSUMERS_MUTANTS = {
    "in-full-disk-final": Mutant(
        "I3", "a driver's own error while a dead received is written counts as its end",
        _a_full_disk_is_final,
        tests=(f"{FAULTS}::test_nothing_passes_a_message_whose_dead_letter_cannot_be_written",),
    ),
    "in-key-goes-on": Mutant(
        "I3", "a key goes on behind a message that can be neither handled nor stored",
        _a_key_goes_on_behind_what_no_row_holds,
        tests=(f"{FAULTS}::test_behind_a_message_that_no_row_can_hold_its_key_waits",),
    ),
    "in-full-disk-charged": Mutant(
        "P2", "an event is charged because the database's disk is full", _a_full_disk_is_charged,
        tests=("tests/scenario/test_relay_sqlite.py::TestHandlers::test_a_full_disk_is_no_handlers_fault",),
    ),
    "in-accept-last": Mutant(
        "H2", "a message is accepted after its effect", _accept_last, tests=(CONSUMER,)
    ),
    "in-accept-outside": Mutant(
        "G6", "accept has a transaction of its own", _accept_outside, tests=(CONSUMER,)
    ),
    "in-ack-before-commit": Mutant(
        "G6", "a message is acknowledged before its effect is committed", _ack_before_commit,
        tests=(CONSUMER,),
    ),
    "in-ack-before-kept": Mutant(
        "G2", "a message is acknowledged before it is stored", _ack_before_kept, tests=(FAULTS,)
    ),
    "in-batch-accept-outside": Mutant(
        "G6", "the messages of a batch are accepted in a transaction of their own",
        _batch_accept_outside, tests=(f"{BATCH}::{POISONED}",),
    ),
    "in-batch-accept-first": Mutant(
        "G6", "all messages of a batch are accepted before the first is handled",
        _batch_accept_first, tests=(f"{BATCHES}::{COMMITS}",),
    ),
    "in-batch-acked-anyway": Mutant(
        "G2", "the messages of a batch that was rolled back are acknowledged",
        _batch_acked_anyway, tests=(f"{BATCH}::{POISONED}",),
    ),
    "in-batch-all-charged": Mutant(
        "G7", "a batch that fails costs each of its messages an attempt", _batch_all_charged,
        tests=(f"{BATCH}::{POISONED}",),
    ),
    "in-batch-trusts-handlers": Mutant(
        "G6", "a batch is committed although a handler has rolled it back",
        _batch_trusts_handlers, tests=(f"{BATCHES}::{ROLLS_BACK}",),
    ),
    "run-trusts-handlers": Mutant(
        "H2", "a run is committed without a look at its transaction", _runs_trust_handlers,
        tests=("tests/contract/test_transactions_sqlite3.py::TestMisbehaviour",),
    ),
    "hang-started-again": Mutant(
        "G7", "an event is run again while its last run hangs in its thread", _hangs_are_forgotten,
        tests=(
            "tests/unit/test_handlers_limits.py",
            "tests/scenario/test_consumer_stalls.py::test_a_handler_that_hangs_is_not_started_beside_itself",
        ),
    ),
    "sync-context-drops-history": Mutant(
        "H2", "what a sync handler adds has no correlation and no causation",
        _sync_context_drops_history, tests=("tests/unit/test_handlers_context.py",),
    ),
    "batch-not-begun": Mutant(
        "H1", "the events of a batch run before their attempts are counted", _batch_not_begun,
        tests=(EVENTS_TOGETHER,),
    ),
    "batch-all-charged": Mutant(
        "P3", "a batch that fails costs each of its events an attempt", _batch_of_events_charged,
        tests=(EVENTS_TOGETHER,),
    ),
    "batch-lanes-unasked": Mutant(
        "L6", "events of a batch start although their lane is another's", _batch_lanes_unasked,
        tests=(f"{REGRESSIONS}::test_of_a_batch_nothing_starts_in_a_lane_that_is_lost",),
    ),
    "batch-together-again": Mutant(
        "G7", "events whose batch failed are handled together again", _batch_together_again,
        tests=(EVENTS_TOGETHER,),
    ),
    "batch-thread-forgotten": Mutant(
        "G7", "who shared a transaction with a thread that hangs is charged for it",
        _batch_thread_forgotten, tests=(EVENTS_TOGETHER,),
    ),
    "in-batch-one-key-twice": Mutant(
        "G4", "several messages of a key are in one batch", _batch_one_key_twice,
        tests=(f"{BATCH}::test_a_batch_is_one_transaction_and_keys_keep_their_order",),
    ),
    "in-cancel-first": Mutant(
        "I3", "who stops makes room for the next consumer with messages in hand", _cancel_first,
        tests=("tests/scenario/test_consumer_rabbitmq.py",),
    ),
    "in-received-is-done": Mutant(
        "I1", "a message that was received counts as done", _received_is_done, tests=(SQLITE,)
    ),
    "in-newness-from-on-duplicate-key": Mutant(
        "I1", "newness is read from ON DUPLICATE KEY UPDATE, through SQLAlchemy",
        _newness_from_on_duplicate_key,
        tests=(f"{INBOX}::TestMariadb::{THOUSAND}[Session over PyMySQL]",),
    ),
    "in-requeue-past-the-key": Mutant(
        "I3", "a failed message goes behind the later ones of its key", _requeue_past_the_key,
        tests=(f"{CONSUMER}::TestMemory::test_a_failed_message_holds_its_key_and_no_other",),
    ),
    "in-commit-past-a-gap": Mutant(
        "G2", "the highest offset that is done is committed", _commit_past_a_gap,
        tests=(MESSAGES,),
    ),
    "in-gap-taken": Mutant(
        "I4", "a strict number is taken although the ones before it are missing", _gap_taken,
        tests=(f"{STRICT}::test_a_gap_parks_its_key_and_no_other[sqlite]",),
    ),
    "in-burial-left-half": Mutant(
        "G2", "a message whose burial was cut short is acknowledged and waits for ever",
        _burial_left_half, tests=("tests/scenario/test_half_buried.py",),
    ),
    "in-poison-thrown-away": Mutant(
        "G7", "what cannot be handled is acknowledged and forgotten", _poison_thrown_away,
        tests=(CONSUMER,),
    ),
}  # fmt: skip
