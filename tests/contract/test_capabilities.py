"""What each store says it can do, pinned by hand: a capability that is lost must not go unseen."""

from __future__ import annotations

import pytest

from postroom.store import Capabilities
from postroom.stores.memory import MemoryStore
from postroom.stores.mongo.store import REPLICA_SET, STANDALONE
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store import StoreContract
from tests.contract.test_store_memory import TestMemoryStore as Memory
from tests.contract.test_store_mongo import TestReplicaSetOfOne as MongoOne
from tests.contract.test_store_mongo import TestReplicaSetOfThree as MongoThree
from tests.contract.test_store_mongo import TestStandalone as MongoAlone
from tests.contract.test_store_mysql import TestMysqlStore as Mysql
from tests.contract.test_store_postgres import TestPostgres15Store as Postgres15
from tests.contract.test_store_postgres import TestPostgres18Store as Postgres18
from tests.contract.test_store_sqlite import TestSqliteStore as Sqlite

ALL_TESTS = {name for name in dir(StoreContract) if name.startswith("test_")}


def left_out(contract):
    return {name for name in ALL_TESTS if getattr(contract, name) is None}


@pytest.mark.promise("G5")
def test_sqlite():
    assert SqliteStore.capabilities == Capabilities(
        transactions=True, concurrent_writers=False, server_clock=False, notify=True, shared=True
    )
    assert left_out(Sqlite) == {
        "test_a_late_committer_is_not_skipped",
        "test_a_late_committer_takes_its_place_before_what_is_unsent",
        "test_a_second_strict_writer_of_a_key_waits_for_the_first",
        "test_the_stager_leaves_an_event_that_is_being_cancelled",
        "test_cancel_and_stager_never_both_win",
    }


@pytest.mark.promise("G5")
def test_mysql():
    """It has no way to tell of commits: relays are kicked, or poll."""
    assert MysqlStore.capabilities == Capabilities(
        transactions=True,
        concurrent_writers=True,
        server_clock=True,
        notify=False,
        shared=True,
        adopts=True,
    )
    assert left_out(Mysql) == {
        "test_a_commit_elsewhere_ends_the_wait",
        "test_without_a_commit_the_wait_ends_by_itself",
        "test_a_cancelled_wait_leaves_the_store_usable",
    }


@pytest.mark.promise("G5")
def test_postgres():
    assert PostgresStore.capabilities == Capabilities(
        transactions=True,
        concurrent_writers=True,
        server_clock=True,
        notify=True,
        shared=True,
        adopts=True,
    )
    assert left_out(Postgres15) == left_out(Postgres18) == set()


def test_memory():
    assert MemoryStore.capabilities == Capabilities(
        transactions=True, concurrent_writers=True, server_clock=True, notify=True, shared=False
    )
    assert left_out(Memory) == {"test_the_tables_can_be_made_by_many_at_once"}


@pytest.mark.promise("G5")
def test_mongo():
    assert (
        Capabilities(
            transactions=True, concurrent_writers=True, server_clock=True, notify=True, shared=True
        )
        == REPLICA_SET
    )
    assert left_out(MongoOne) == left_out(MongoThree) == set()


def test_mongo_without_transactions():
    """G5 does not hold there; nor do strict numbers, which no crash may leave a gap in."""
    assert (
        Capabilities(
            transactions=False,
            concurrent_writers=True,
            server_clock=True,
            notify=False,
            shared=True,
        )
        == STANDALONE
    )
    assert left_out(MongoAlone) == {
        "test_a_commit_elsewhere_ends_the_wait",
        "test_a_number_that_consumers_wait_for_is_not_pruned",
        "test_a_purge_and_a_replay_at_the_same_moment",
        "test_a_step_that_fails_changes_neither_events_nor_position",
        "test_an_edit_and_a_replay_at_the_same_moment",
        "test_an_edited_strict_event_takes_number_and_place",
        "test_without_a_commit_the_wait_ends_by_itself",
        "test_a_cancelled_wait_leaves_the_store_usable",
        "test_a_late_committer_is_not_skipped",
        "test_a_late_committer_takes_its_place_before_what_is_unsent",
        "test_a_second_strict_writer_of_a_key_waits_for_the_first",
        "test_strict_numbers_have_no_gap_after_a_rollback",
        "test_the_mark_of_a_strict_key_must_have_come_to_its_number",
        "test_skip_puts_a_marker_in_the_place_of_the_event",
        "test_a_skipped_event_gets_a_new_number_when_it_is_replayed",
        "test_a_strict_copy_gets_a_new_number",
        "test_the_history_of_a_skipped_event_stays_with_it",
        "test_two_long_ids_of_one_beginning_can_both_be_skipped",
        "test_the_stager_leaves_an_event_that_is_being_cancelled",
        "test_cancel_and_stager_never_both_win",
    }


def test_a_store_that_can_do_everything_leaves_nothing_out():
    class Everything(StoreContract):
        pass

    assert left_out(Everything) == set()
    assert len(ALL_TESTS) > 90


def test_a_capability_that_is_missing_takes_its_tests_out_and_no_others():
    class Quiet(StoreContract):
        capabilities = Capabilities(notify=False)

    assert left_out(Quiet) == {
        "test_a_commit_elsewhere_ends_the_wait",
        "test_without_a_commit_the_wait_ends_by_itself",
        "test_a_cancelled_wait_leaves_the_store_usable",
    }
