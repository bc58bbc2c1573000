"""Bugs in the MySQL store."""

from tests.mutants.mutant import Mutant

CONTRACT = "tests/contract/test_store_mysql.py"
FENCE = "tests/scenario/test_mysql_fence.py"
PRUNE = "tests/scenario/test_mysql_prune.py"
ADOPT = "tests/scenario/test_mysql_adopt.py"
CHARSET = "tests/scenario/test_mysql_charset.py"


def _rewrite(name, old, new):
    """Change the text of one SQL statement of the MySQL store."""
    from postroom.stores.mysql.statements import load_queries

    queries = load_queries("postroom_")
    assert old in queries[name], f"{name}.sql no longer says {old!r}"
    queries[name] = queries[name].replace(old, new)


def _operator_takes_no_lock():
    _rewrite("waiting_lock", "ORDER BY seq FOR UPDATE", "ORDER BY seq")


def _no_fence():
    from postroom.stores.mysql import blocks, settle

    async def open_door(session, stream, owner, leases):
        await session.run("advance_barrier", stream="", key_hash=b"", barrier=0)  # and BEGIN
        return dict(leases)

    blocks.fence = settle.fence = open_door


def _fence_that_reads():
    from postroom.stores.mysql import blocks, settle
    from postroom.stores.mysql.leases import pairs

    async def look(session, stream, owner, leases):
        where = {"stream": stream, "owner": owner, **pairs(leases)}
        left = {lane for (lane,) in await session.rows("settle_held", **where)}
        return {lane: token for lane, token in leases.items() if lane in left}

    blocks.fence = settle.fence = look


def _fence_without_token():
    for name in ("settle_fence", "settle_held"):
        _rewrite(name, "AND (lane, token) IN %(held)s ", "")


def _fence_without_expiry():
    for name in ("settle_fence", "settle_held"):
        _rewrite(name, "AND until > UTC_TIMESTAMP(6)", "")


def _fence_without_owner():
    for name in ("settle_fence", "settle_held"):
        _rewrite(name, "AND owner = %(owner)s ", "")


def _take_without_lock():
    _rewrite("take_free", "FOR UPDATE SKIP LOCKED", "")


def _no_begin():
    from postroom.stores.mysql.session import Session

    execute = Session.execute

    async def at_once(self, text):
        if self._ahead[:1] == ["BEGIN"]:
            self._ahead = self._ahead[1:]
        await execute(self, text)

    Session.execute = at_once


def _no_rollback():
    from postroom.stores.mysql.session import Session

    async def forgotten(self):
        self._ahead = []

    Session._roll_back = forgotten


def _operator_looks_first():
    from postroom.stores.mysql import commands

    async def hasty(session, ids, lanes, *, finished):
        rows = await session.rows("chosen", ids=tuple(ids), finished=finished) if lanes else ()
        for stream in lanes:
            await session.run("fence_lanes", stream=stream, lanes=tuple(lanes[stream]))
        return [commands._Chosen._make(row) for row in rows]

    commands._choose = hasty
    _rewrite("bury", "WHERE o.stage <> 'over'", "")


def _block_in_memory():
    _rewrite("settle_block", "AND o.`key` IS NOT NULL", "AND o.`key` IS NULL")


def _park_without_a_block():
    _rewrite("settle_parked", "AND EXISTS (", "OR 0 = (")


def _unpark_all_wrong():
    _rewrite("advance_next", "ORDER BY seq", "ORDER BY seq DESC")


def _read_of_anybody():
    _rewrite("read_held", "AND EXISTS (", "OR EXISTS (")


def _fence_waits_for_nobody():
    from postroom.stores.mysql import blocks, settle

    fence = settle.fence

    async def committed(session, stream, owner, leases):
        found = await fence(session, stream, owner, leases)
        await session.execute("COMMIT")
        return found

    blocks.fence = settle.fence = committed


def _host_clock():
    import time
    from datetime import UTC, datetime

    from postroom.stores.mysql.session import Session

    execute = Session.execute

    async def by_the_host(self, text):
        now = datetime.fromtimestamp(time.time(), UTC)
        await execute(self, text.replace("UTC_TIMESTAMP(6)", f"TIMESTAMP'{now:%F %T.%f}'"))

    Session.execute = by_the_host


def _no_set_names():
    from postroom.stores.mysql.session import Target

    connect = Target.connect

    async def as_the_server_likes(self, *, names=True):
        return await connect(self, names=False)

    Target.connect = as_the_server_likes


def _driver_is_believed():
    from postroom.transactions.dialect_mysql import Mysql

    def ask_nobody(self, driver):
        return
        yield

    Mysql._refuse_charset = ask_nobody


def _server_converts():
    for name in ("read", "get", "find", "find_open"):
        _rewrite(name, "o.type,", "CAST(CONVERT(o.type USING utf8mb4) AS BINARY),")


def _adopt_backwards():
    _rewrite("adopt", "ORDER BY a.id", "ORDER BY a.id DESC")


def _adopt_beside_relays():
    from postroom.stores.mysql import adopt

    async def nobody_is_there(session, adoption):
        pass

    adopt._refuse_relays = nobody_is_there


def _prune_by_the_look():
    _rewrite("prune", " AND state IN ('done', 'expired', 'cancelled')", "")


def _prune_whatever_is_done():
    time = " AND settled_at < UTC_TIMESTAMP(6) - INTERVAL %(older)s MICROSECOND"
    _rewrite("prune", time, "")


def _opened_by_each():
    from contextlib import nullcontext

    from postroom.stores.mysql.store import MysqlStore

    MysqlStore._lifecycle_lock = property(lambda self: nullcontext(), lambda self, door: None)


def _unknown_is_pending():
    from postroom.stores.mysql.adopt import Adoption

    class Any(dict):
        def __contains__(self, status):
            return True

        def __missing__(self, status):
            return "pending"

    meanings = Adoption.meanings.fget
    Adoption.meanings = property(lambda self: Any(meanings(self)))


def _aggregate_0_is_none():
    text = "IF(NULLIF(CONVERT(t.aggregate_id USING utf8mb4), '') IS NULL,"
    _rewrite("adopt", text, "IF(NULLIF(t.aggregate_id, '') IS NULL,")


def _times_are_utc():
    from postroom.stores.mysql import adopt

    async def utc(session, adoption):
        return adoption.time_zone or "+00:00"

    adopt._time_zone = utc


def _null_payloads():
    _rewrite("adopt_unfit", "WHEN t.payload IS NULL THEN 'payload is NULL'", "")


def _password_in_clear():
    from postroom.stores.mysql import session

    session._REFUSED_PLUGINS = {}


def _sync_password_in_clear():
    import pymysql

    connect = pymysql.connect
    pymysql.connect = lambda **options: connect(**{**options, "auth_plugin_map": None})


def _replay_takes_lanes():
    from postroom.stores.mysql.statements import load_queries

    queries = load_queries("postroom_")
    queries["replayed"] = queries["fence_lanes"]


def _zero_dates_are_dates():
    known = "TIMESTAMPDIFF(MICROSECOND, until, UTC_TIMESTAMP(6))"
    _rewrite("leases_members", f"COALESCE({known}, 9223372036854775807)", known)


MYSQL_MUTANTS = {
    "my-zero-date": Mutant(
        "F1", "a member with a zero date stops every heartbeat", _zero_dates_are_dates,
        tests=(f"{FENCE}::test_a_member_with_a_zero_date_stops_no_heartbeat",),
    ),
    "my-operator-takes-no-lock": Mutant(
        "W7", "an operator changes waiting events without a lock", _operator_takes_no_lock,
        tests=(f"{FENCE}::test_an_operator_waits_for_a_cancel_under_way_and_leaves_the_event",),
    ),
    "my-replay-takes-lanes": Mutant(
        "L7", "a replay takes the lanes from their owners", _replay_takes_lanes,
        tests=(f"{CONTRACT}::TestMysqlStore::test_a_replay_leaves_the_lanes_to_their_owners",),
    ),
    "my-password-in-clear": Mutant(
        "S4.9", "a server that asks for the password in clear text is told it, over an open line",
        _password_in_clear, tests=("tests/unit/test_mysql_clear_text.py",),
    ),
    "my-sync-password-in-clear": Mutant(
        "S4.9", "the driver of sync handlers tells it such a server", _sync_password_in_clear,
        tests=("tests/unit/test_mysql_clear_text.py::test_nor_by_the_driver_of_sync_handlers",),
    ),
    "my-adopt-unknown-is-pending": Mutant(
        "G3", "rows of a status that nobody explained are sent", _unknown_is_pending,
        tests=(f"{ADOPT}::test_unknown_statuses_are_refused_before_anything_moves",),
    ),
    "my-adopt-aggregate-0": Mutant(
        "W10", "adopted rows of aggregate 0 have a key without its hash", _aggregate_0_is_none,
        tests=(f"{ADOPT}::test_aggregate_0_is_a_key_like_any_other",),
    ),
    "my-adopt-utc": Mutant(
        "W10", "the times of adopted rows count as UTC", _times_are_utc,
        tests=(
            f"{ADOPT}::test_a_zone_that_the_server_does_not_know_is_refused",
            f"{ADOPT}::test_times_are_those_of_the_old_writers",
        ),
    ),
    "my-adopt-null-payload": Mutant(
        "F1", "a row without a payload ends an adoption half-way", _null_payloads,
        tests=(f"{ADOPT}::test_a_row_without_a_payload_is_named_before_anything_moves",),
    ),
    "my-prune-any-state": Mutant(
        "G2", "an event that is replayed meanwhile is pruned", _prune_by_the_look, tests=(PRUNE,)
    ),
    "my-prune-any-time": Mutant(
        "G2", "an event that was done just now is pruned", _prune_whatever_is_done, tests=(PRUNE,)
    ),
    "my-opened-by-each": Mutant(
        "S4.7", "each of several relays opens their store", _opened_by_each,
        tests=("tests/scenario/test_opened_at_once.py::test_a_mysql_store_is_opened_once",),
    ),
    "my-adopt-backwards": Mutant(
        "G4", "rows that are adopted get new numbers in the wrong order", _adopt_backwards,
        tests=(f"{ADOPT}::test_rows_with_new_numbers_keep_their_order",),
    ),
    "my-adopt-beside-relays": Mutant(
        "G4", "rows are adopted while relays send what comes after them", _adopt_beside_relays,
        tests=(f"{ADOPT}::test_nothing_is_adopted_while_a_relay_serves_the_stream",),
    ),
    "my-no-set-names": Mutant(
        "G2", "connections have the character set that the server imposes", _no_set_names,
        tests=(CHARSET,),
    ),
    "my-driver-believed": Mutant(
        "G2", "a writer's character set is what its driver says", _driver_is_believed,
        tests=(CHARSET,),
    ),
    "my-server-converts": Mutant(
        "G7", "text that is not UTF-8 is sent with question marks", _server_converts,
        tests=(f"{CONTRACT}::TestMysqlStore::test_a_row_that_cannot_be_a_record_costs_one_event",),
    ),
    "my-host-clock": Mutant(
        "L1", "leases are judged by the clock of the relay's host", _host_clock,
        tests=("tests/scenario/test_wrong_clock.py",),
    ),
    "my-no-fence": Mutant(
        "L2", "no fence", _no_fence,
        tests=(f"{CONTRACT}::TestMysqlStore::test_operators_take_the_lane_from_its_owner",),
    ),
    "my-fence-reads": Mutant(
        "L2", "the fence reads the lease rows without a lock", _fence_that_reads,
        tests=(f"{FENCE}::test_a_lane_cannot_be_taken_between_the_check_and_the_commit",),
    ),
    "my-fence-commits": Mutant(
        "L2", "the fence is a transaction of its own", _fence_waits_for_nobody,
        tests=(f"{FENCE}::test_a_lane_cannot_be_taken_between_the_check_and_the_commit",),
    ),
    "my-fence-no-token": Mutant(
        "L2", "the fence does not ask for the token", _fence_without_token,
        tests=(f"{CONTRACT}::TestMysqlStore::test_a_stale_token_mends_nothing",),
    ),
    "my-fence-no-expiry": Mutant(
        "L2", "the fence does not ask for the time", _fence_without_expiry,
        tests=(f"{CONTRACT}::TestMysqlStore::test_an_expired_lease_settles_nothing",),
    ),
    "my-fence-no-owner": Mutant(
        "L2", "the fence does not ask for the owner", _fence_without_owner,
        tests=(f"{CONTRACT}::TestMysqlStore::test_a_stale_token_mends_nothing",),
    ),
    "my-take-unlocked": Mutant(
        "L1", "a lane is chosen first and taken later, without a lock in between",
        _take_without_lock, tests=(f"{FENCE}::test_a_lane_cannot_be_taken_between_the_check_and_the_commit",),
    ),
    "my-no-begin": Mutant(
        "L2", "every statement of a settle commits by itself", _no_begin,
        tests=(f"{FENCE}::test_a_lane_cannot_be_taken_between_the_check_and_the_commit",),
    ),
    "my-no-rollback": Mutant(
        "L5", "a lock wait that ran out leaves its transaction open", _no_rollback,
        tests=(FENCE,),
    ),
    "my-operator-looks-first": Mutant(
        "L7", "an operator's verb decides before it has the lanes",
        _operator_looks_first, tests=(f"{FENCE}::test_an_operator_waits_for_a_settle_and_changes_what_it_left",),
    ),
    "my-block-in-memory": Mutant(
        "B1", "a failed head blocks its key in memory only", _block_in_memory,
        tests=(f"{CONTRACT}::TestMysqlStore::test_the_details_of_an_event",),
    ),
    "my-park-for-ever": Mutant(
        "B3", "followers are parked although their block is gone",
        _park_without_a_block, tests=(f"{CONTRACT}::TestMysqlStore::test_nothing_is_parked_behind_a_key_that_is_free",),
    ),
    "my-unpark-wrong": Mutant(
        "B3", "the last followers come back first", _unpark_all_wrong,
        tests=(f"{CONTRACT}::TestMysqlStore::test_a_long_queue_drains_in_order_with_new_arrivals_and_a_second_failure",),
    ),
    "my-read-of-anybody": Mutant(
        "L7", "a lane is read by who no longer holds it", _read_of_anybody,
        tests=(f"{CONTRACT}::TestMysqlStore::test_a_lane_that_its_reader_does_not_hold_brings_nothing",),
    ),
}  # fmt: skip
