"""A handler's open transaction keeps others from writing on some stores: its time is cut there."""

import pytest

from postroom.engine.handlers.handlers import Handlers
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore


@pytest.mark.promise("H4")
def test_the_limit_is_a_third_of_the_lease_where_one_writer_keeps_all_others_out(tmp_path):
    bound = Handlers(time_limit_seconds=30).bind(SqliteStore(tmp_path / "app.db"), 15.0)
    assert bound._limit == 5.0


@pytest.mark.promise("H4")
def test_the_limit_stays_where_writers_do_not_exclude_each_other():
    assert Handlers(time_limit_seconds=30).bind(MemoryStore(), 15.0)._limit == 30


def test_the_limit_stays_when_the_transactions_are_the_users_own(tmp_path):
    handlers = Handlers(time_limit_seconds=30, transaction=False, sync_transaction=False)
    assert handlers.bind(SqliteStore(tmp_path / "app.db"), 15.0)._limit == 30
