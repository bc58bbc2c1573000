"""Bugs in the PostgreSQL store."""

from tests.mutants.mutant import Mutant

FENCE = "tests/scenario/test_postgres_fence.py"
WRITERS = "tests/scenario/test_postgres_writers.py"
FLOOR = "tests/scenario/test_postgres_floors.py"
CONTRACT = "tests/contract/test_store_postgres.py::TestPostgres15Store::"
PSYCOPG = "tests/contract/test_transactions_psycopg.py::"
ADOPT = "tests/scenario/test_postgres_adopt.py::"
POOLER = "tests/scenario/test_postgres_pgbouncer.py::"
SEQUENCE = "tests/scenario/test_postgres_sequence.py::"
PLANS = "tests/scenario/test_postgres_plans.py::test_statistics_of_one_key_do_not_lead_a_read_along_the_primary_key"


def _rewrite(old, new):
    """Change the text of the PostgreSQL store's statements and functions, wherever it stands."""
    from postroom.stores import sql_files
    from postroom.stores.postgres.statements import load_queries

    queries, load = load_queries("postroom_"), sql_files.load_migrations
    found = [name for name, query in queries.items() if old in query.sql]
    for name in found:
        queries[name] = queries[name]._replace(sql=queries[name].sql.replace(old, new))

    def mutated(package, prefix):
        return tuple(
            step._replace(script=step.script.replace(old, new)) for step in load(package, prefix)
        )

    told = any(old in step.script for step in load("postroom.stores.postgres", "postroom_"))
    assert found or told, f"nothing says {old!r} any more"
    sql_files.load_migrations = mutated


def _fence_without_lock():
    _rewrite("FOR SHARE)", ")")


def _fence_key_share():
    _rewrite("FOR SHARE", "FOR KEY SHARE")


def _fence_in_the_past():
    _rewrite("until > clock_timestamp()", "until > transaction_timestamp()")


def _take_without_lock():
    _rewrite("ORDER BY lane FOR NO KEY UPDATE SKIP LOCKED", "ORDER BY lane")


def _waits_for_locked_lanes():
    _rewrite(" SKIP LOCKED", "")


def _naive_floor():
    from postroom.stores.postgres import floors

    async def nobody(db):
        return frozenset()

    floors._writers = nobody


def _floor_above_its_proof():
    from postroom.stores.postgres.floors import Floors

    set_floors = Floors._raise

    async def at_the_lowest(self, db, request, number):
        await set_floors(self, db, request, 2**60)

    Floors._raise = at_the_lowest


def _operator_takes_no_lock():
    _rewrite("interval '1 microsecond')\nORDER BY seq FOR UPDATE",
             "interval '1 microsecond')\nORDER BY seq")  # fmt: skip


def _floor_forgets_what_comes_back():
    from postroom.stores.postgres.floors import Floors

    Floors.lower = lambda self, stream, lowest: None


def _lane_as_equality():
    _rewrite("(r.lane, r.seq) >= (l.lane, coalesce(l.floor, 0)) AND r.lane <= l.lane",
             "r.lane = l.lane AND r.seq >= coalesce(l.floor, 0)")  # fmt: skip


def _key_as_equality():
    _rewrite("p.key_hash >= k.key_hash AND p.key_hash <= k.key_hash", "p.key_hash = k.key_hash")


def _numbers_in_advance():
    _rewrite("IDENTITY (CACHE 1)", "IDENTITY (CACHE 20)")


def _host_clock():
    import time

    from postroom.stores.postgres.database import Session

    execute = Session._execute

    async def by_the_host(self, name, values):
        query = self._sql[name]
        now = f"to_timestamp({time.time()})"
        other = query._replace(sql=query.sql.replace("clock_timestamp()", now))
        return await execute(Session(self.connection, {name: other}), name, values)

    Session._execute = by_the_host


def _any_conflict_is_a_duplicate():
    from postroom import outbox
    from postroom.errors import DuplicateEventError

    def refuse(tx, ids, on_duplicate="raise"):
        raise DuplicateEventError(ids)
        yield

    outbox.refuse = refuse


def _sequence_unseen():
    from postroom.stores.postgres import schema

    async def nothing(connection, options):
        pass

    schema._warn_of_sequence = nothing


def _replay_takes_lanes():
    from postroom.stores.postgres.statements import load_queries

    queries = load_queries("postroom_")
    queries["replayed"] = queries["fence_lanes"]


def _replay_above_the_floor():
    _rewrite("replayed = least(f.replayed, c.lowest)", "replayed = NULL")


def _first_lane_first():
    _rewrite("LIMIT ceil(in_limit::float8 / busy)", "LIMIT in_limit")


def _busy_connection_is_taken():
    from postroom.transactions import psycopg

    assert psycopg._ACTIVE
    psycopg._ACTIVE = None


def _rewrite_raw(name, old, new):
    """Change the text of a statement that is filled in when it is used."""
    from postroom.stores import sql_files

    queries = sql_files.load_queries("postroom.stores.postgres", "postroom_")
    assert old in queries[name], f"{name}.sql no longer says {old!r}"
    queries[name] = queries[name].replace(old, new)


def _adopt_backwards():
    _rewrite_raw("adopt", "ORDER BY a.rank, a.place", "ORDER BY a.rank DESC, a.place DESC")


def _adopt_without_room():
    from postroom.stores.postgres import adopt

    async def none(self):
        pass

    adopt._OldTable.make_room = none


def _adopt_beside_relays():
    from postroom.stores.postgres import adopt

    adopt.refuse_relays = lambda membership, adoption: None


def _adopt_believes_the_delete():
    _rewrite_raw("adopt_delete", "{id} = ANY", "{id} IS NOT NULL OR t.{id} = ANY")


def _prepares_behind_a_pooler():
    from postroom.stores.postgres import handler_transactions

    async def prepare(connection):
        connection.prepare_threshold = handler_transactions.OWN_ONLY

    handler_transactions._prepare = prepare


POSTGRES_MUTANTS = {
    "pg-prepares-behind-a-pooler": Mutant(
        "H3", "statements of handlers are prepared in sessions that a pooler shares",
        _prepares_behind_a_pooler,
        tests=(f"{POOLER}test_handlers_prepare_nothing_that_another_session_would_lack",),
    ),
    "pg-adopt-backwards": Mutant(
        "G4", "rows that are adopted get new numbers in the wrong order", _adopt_backwards,
        tests=(f"{ADOPT}test_a_plain_table_with_uuids_and_names_of_its_own",),
    ),
    "pg-adopt-without-room": Mutant(
        "G4", "new events get numbers below those of rows that are adopted later",
        _adopt_without_room,
        tests=(f"{ADOPT}test_a_live_table_is_adopted_while_old_and_new_writers_go_on",),
    ),
    "pg-adopt-beside-relays": Mutant(
        "G4", "rows are adopted while relays send what comes after them", _adopt_beside_relays,
        tests=(f"{ADOPT}test_nothing_is_adopted_while_a_relay_serves_the_stream",),
    ),
    "pg-adopt-deletes-all": Mutant(
        "G2", "a step of an adoption deletes rows that it did not move",
        _adopt_believes_the_delete,
        tests=(f"{ADOPT}test_sent_rows_may_stay",),
    ),
    "pg-busy-connection": Mutant(
        "W3", "an event is added to a connection in autocommit mode that another task uses",
        _busy_connection_is_taken,
        tests=(f"{PSYCOPG}test_autocommit_is_refused_while_another_task_uses_the_connection",),
    ),
    "pg-floor-above-its-proof": Mutant(
        "R6", "a floor is raised to the lowest ready event, whatever was proven",
        _floor_above_its_proof,
        tests=(f"{FLOOR}::test_a_floor_is_not_above_the_number_of_its_proof",),
    ),
    "pg-operator-takes-no-lock": Mutant(
        "W7", "an operator changes waiting events without a lock", _operator_takes_no_lock,
        tests=(f"{FENCE}::test_an_operator_waits_for_a_cancel_under_way_and_leaves_the_event",),
    ),
    "pg-replay-takes-lanes": Mutant(
        "L7", "a replay takes the lanes from their owners", _replay_takes_lanes,
        tests=(f"{CONTRACT}test_a_replay_leaves_the_lanes_to_their_owners",),
    ),
    "pg-replay-above-the-floor": Mutant(
        "R6", "reads begin above an event that was replayed", _replay_above_the_floor,
        tests=(f"{FLOOR}::test_what_an_operator_brings_back_below_the_floor_is_read",),
    ),
    "pg-stage-lane-by-lane": Mutant(
        "W7", "due events of one lane use up the limit of a stage", _first_lane_first,
        tests=(f"{CONTRACT}test_due_events_of_one_lane_do_not_hold_up_the_others",),
    ),
    "pg-conflict-is-a-duplicate": Mutant(
        "W5", "an event whose number is taken counts as added before",
        _any_conflict_is_a_duplicate,
        tests=(f"{SEQUENCE}test_a_number_that_is_taken_is_not_a_duplicate",),
    ),
    "pg-sequence-unseen": Mutant(
        "W5", "a relay does not say that the sequence is behind its table", _sequence_unseen,
        tests=(f"{SEQUENCE}test_open_and_the_doctor_say_how_to_repair_it",),
    ),
    "pg-host-clock": Mutant(
        "L1", "leases are judged by the clock of the relay's host", _host_clock,
        tests=("tests/scenario/test_wrong_clock.py",),
    ),
    "pg-sequence-cache": Mutant(
        "W8", "each session takes 20 numbers at a time", _numbers_in_advance, tests=(WRITERS,),
    ),
    "pg-fence-exists": Mutant(
        "L2", "the fence reads the lease rows without a lock", _fence_without_lock,
        tests=(FENCE,),
    ),
    "pg-fence-key-share": Mutant(
        "L2", "the fence takes a lock that a change of the lease does not mind",
        _fence_key_share, tests=(FENCE,),
    ),
    "pg-fence-now": Mutant(
        "L2", "the lease is judged by the clock at the start of the transaction",
        _fence_in_the_past, tests=(FENCE,),
    ),
    "pg-take-unlocked": Mutant(
        "L2", "a lane is chosen first and taken later, without a lock in between",
        _take_without_lock, tests=(FENCE,),
    ),
    "pg-waits-for-locked-lanes": Mutant(
        "L1", "a take and a beat wait for a lane that a stranger has locked",
        _waits_for_locked_lanes, tests=("tests/scenario/test_locked_lane.py",),
    ),
    "pg-floor-naive": Mutant(
        "R6", "the floor is the last number given, whoever is still writing",
        _naive_floor, tests=(FLOOR,),
    ),
    "pg-floor-forgets": Mutant(
        "R6", "an event that comes back from waiting stays below the floor",
        _floor_forgets_what_comes_back, tests=(FLOOR,),
    ),
    "pg-lane-as-equality": Mutant(
        "D3", "a read asks for a lane in an order that the primary key has too", _lane_as_equality,
        tests=(f"{PLANS}[postgres_url-ready]",),
    ),
    "pg-key-as-equality": Mutant(
        "D3", "so does who frees a key", _key_as_equality, tests=(f"{PLANS}[postgres_url-parked]",),
    ),
}  # fmt: skip
