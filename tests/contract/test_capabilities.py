"""What each store says it can do, pinned by hand: a capability that is lost must not go unseen."""

from __future__ import annotations

import pytest

from postroom.store import Capabilities
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store import StoreContract
from tests.contract.test_store_memory import TestMemoryStore as Memory
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
    }


def test_memory():
    assert MemoryStore.capabilities == Capabilities(
        transactions=True, concurrent_writers=True, server_clock=True, notify=True, shared=False
    )
    assert left_out(Memory) == {"test_the_tables_can_be_made_by_many_at_once"}


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
