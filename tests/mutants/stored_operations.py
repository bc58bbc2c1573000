"""Bugs in stored operations: owners, positions, fixed sets, canaries; heads with followers."""

from tests.mutants.mutant import Mutant

STORE = "tests/contract/test_store_sqlite.py::TestSqliteStore::"
MEMORY = "tests/contract/test_store_memory.py::TestMemoryStore::"
DRIVER = "tests/unit/test_operations.py::"
FOLLOWERS = "tests/cli/test_followers.py::"


def _rewrite(name, old, new):
    """Change the text of one SQL statement of the SQLite store."""
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    assert old in queries[name], f"{name}.sql no longer says {old!r}"
    queries[name] = queries[name].replace(old, new)


def _no_token():
    _rewrite("operation_fence", "owner = :owner AND token = :token", ":owner = :owner AND :token")


def _paused_goes_on():
    _rewrite("operation_fence", "token = :token AND state = 'running'", ":token >= 0")
    _rewrite("operation_change", "owner = NULL, until = NULL,", "")


def _owner_for_ever():
    _rewrite("operation_take", "until <= :now OR until > :now + :ahead", ":now + :ahead = 0")


def _owner_of_the_future():
    _rewrite("operation_take", "until > :now + :ahead", ":ahead = 0")


def _no_fixed_set():
    _rewrite("operation_chosen", "o.settled_at > :now", ":now > 0")


def _hidden_by_the_clock():
    from postroom.stores.memory.operations import Operations

    chosen = Operations._chosen

    def narrowed(self, ids, *, over):
        began = max((one.created_us for one in self.data.operations.values()), default=None)
        found = chosen(self, ids, over=over)
        return [one for one in found if began is None or (one.settled_us or 0) <= began]

    Operations._chosen = narrowed


def _any_state():
    _rewrite("operation_chosen", "o.state = :state", ":state IS NOT NULL")


def _position_in_a_transaction_of_its_own():
    from postroom.stores.sqlite import operations

    advance = operations.advance_operation

    def in_two(db, held, step):
        sent = advance(db, held, step._replace(position=None))
        if sent is not None and step.position is not None:
            advance(db, held, step._replace(ids=(), position=lambda _: step.position(sent)))
        return sent

    operations.advance_operation = in_two


def _behind_the_page():
    from postroom.engine.operations.driver import Driver

    following = Driver._next

    async def following_page(self):
        where = self._request.filter._replace(after_seq=self._position.seq, limit=self._page)
        page = await self._store.find(where)
        chosen, seq, is_last = await following(self)
        return chosen, page[-1].seq if page else seq, is_last

    Driver._next = following_page


def _canary_never_waits():
    from postroom.engine.operations.driver import Driver

    async def at_once(self):
        self._position = self._position._replace(watched=())
        return True

    Driver._group_is_sent = at_once


def _canary_ignores_retries():
    from postroom.engine.operations import driver
    from postroom.record import State

    driver._FAILED = (State.DEAD,)
    driver._OPEN = (State.PENDING,)


def _one_refused_event_stops_all():
    from postroom.engine.operations.driver import Driver

    async def give_up(self, chosen, error):
        raise ZeroDivisionError

    Driver._without = give_up


def _the_lease_is_kept():
    from postroom.engine.operations import driver

    async def kept(store, held):
        pass

    driver._release = kept


def _slow_ones_first():
    from postroom.engine.operations import watch

    watch._AT_ONCE = 1


def _every_relay_looks():
    from postroom.engine.operations import watch

    async def look(self, store):
        self.seen = await store.operations(unfinished=True, limit=100)
        return [one for one in self.seen if one.free and one.id not in self.driven]

    watch._Board.look = look


def _part_of_the_followers():
    from postroom.stores.sqlite import commands

    commands.require_all = lambda ids, found: None


def _followers_in_steps():
    from postroom.cli import replay
    from postroom.cli.replay import Order

    work = replay._work

    async def stepwise(store, chosen, order, stop):
        fields = {**vars(order), "followers": False}
        return await work(store, chosen, Order(**fields), stop)

    replay._work = stepwise


def _hidden_by_stopped_ones():
    _rewrite("operations_unfinished", "state = 'running' DESC, ", "")


def _unfinished_ones_are_pruned():
    _rewrite("prune_operations", "AND state IN ('cancelled', 'done')", "")


def _silent_when_stopped():
    from postroom.telemetry import conditions

    conditions.of_operations = lambda found: []


def _gives_up_at_a_deadlock():
    from postroom.engine import lock_retries

    lock_retries.TRIES = 1


STORED_OPERATIONS_MUTANTS = {
    "operation-gives-up-at-a-deadlock": Mutant(
        "F2", "one deadlock interrupts an operation", _gives_up_at_a_deadlock,
        tests=(DRIVER + "test_a_step_that_meets_locks_is_repeated_a_few_times",),
    ),
    "operation-hidden-by-stopped-ones": Mutant(
        "F2", "a hundred stopped operations keep a running one from every relay",
        _hidden_by_stopped_ones,
        tests=(STORE + "test_a_running_operation_is_not_hidden_by_newer_ones_that_do_not_run",),
    ),
    "unfinished-operations-pruned": Mutant(
        "G2", "an operation that waits for an operator is deleted", _unfinished_ones_are_pruned,
        tests=(STORE + "test_operations_that_ended_long_ago_are_deleted_the_oldest_first",),
    ),
    "stopped-operation-is-silent": Mutant(
        "F2", "no lamp shows that an operation has stopped", _silent_when_stopped,
        tests=("tests/scenario/test_lamps.py::test_an_operation_that_stopped",),
    ),
    "operation-without-a-token": Mutant(
        "L2", "a step of an earlier owner of an operation still changes events", _no_token,
        tests=(STORE + "test_a_stale_owner_changes_nothing",),
    ),
    "operation-ignores-its-pause": Mutant(
        "L2", "the owner of a paused operation takes another step", _paused_goes_on,
        tests=(STORE + "test_a_stale_owner_changes_nothing",),
    ),
    "operation-owned-for-ever": Mutant(
        "L1", "the operation of a dead process is never continued", _owner_for_ever,
        tests=(STORE + "test_one_process_at_a_time_owns_an_operation",),
    ),
    "operation-owned-in-the-future": Mutant(
        "L1", "after the clock was set back nothing continues an operation", _owner_of_the_future,
        tests=(STORE + "test_an_owner_in_the_future_is_no_owner",),
    ),
    "operation-without-a-fixed-set": Mutant(
        "L7", "events that die again are replayed again", _no_fixed_set,
        tests=(STORE + "test_only_events_that_were_finished_before_the_start_are_replayed",),
    ),
    "operation-hides-deaths-of-the-future": Mutant(
        "L7", "events that died before the clock was set back are left out", _hidden_by_the_clock,
        tests=(MEMORY + "test_a_clock_that_was_set_back_after_the_deaths_hides_no_event",),
    ),
    "operation-replays-any-state": Mutant(
        "L7", "an event that was sent meanwhile is sent again", _any_state,
        tests=(STORE + "test_only_events_that_were_finished_before_the_start_are_replayed",),
    ),
    "operation-position-apart": Mutant(
        "L7", "events and position change in two transactions",
        _position_in_a_transaction_of_its_own,
        tests=(STORE + "test_a_step_that_fails_changes_neither_events_nor_position",),
    ),
    "operation-behind-the-page": Mutant(
        "G7", "an operation goes on behind a page of which it has replayed a part",
        _behind_the_page,
        tests=(f"{DRIVER}test_a_group_is_replayed_to_its_end_in_steps_smaller_than_a_page",),
    ),
    "canary-never-waits": Mutant(
        "L7", "a canary replays everything before its first events are sent", _canary_never_waits,
        tests=(DRIVER + "test_a_canary_grows_and_waits_for_each_group",),
    ),
    "canary-ignores-retries": Mutant(
        "L7", "a canary goes on while its events fail", _canary_ignores_retries,
        tests=(DRIVER + "test_a_canary_stops_at_the_first_failure_and_can_be_resumed",),
    ),
    "refused-event-stops-all": Mutant(
        "F2", "one event that the store refuses ends the operation", _one_refused_event_stops_all,
        tests=(DRIVER + "test_an_event_that_the_store_refuses_costs_one_event",),
    ),
    "operation-lease-is-kept": Mutant(
        "L4", "a stopped relay keeps its operations until their leases expire", _the_lease_is_kept,
        tests=(DRIVER + "test_a_cancelled_driver_gives_its_lease_up",),
    ),
    "slow-operation-first": Mutant(
        "F2", "a slow operation delays all others", _slow_ones_first,
        tests=(DRIVER + "test_a_slow_operation_does_not_delay_the_next",),
    ),
    "every-relay-looks-for-operations": Mutant(
        "F2", "each relay of a process asks for operations", _every_relay_looks,
        tests=(DRIVER + "test_relays_of_one_process_look_once",),
    ),
    "part-of-the-followers": Mutant(
        "G4", "a head and its followers change in part", _part_of_the_followers,
        tests=(STORE + "test_all_of_the_named_events_are_changed_or_none",),
    ),
    "followers-in-steps": Mutant(
        "G4", "a head and its followers change in several transactions", _followers_in_steps,
        tests=(FOLLOWERS + "test_a_head_and_its_followers_are_buried_and_sent_again_in_order",),
    ),
}  # fmt: skip
