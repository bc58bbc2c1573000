"""`async with open_store(url)`, and stores as async context managers."""

import pytest

from postroom import (
    ConfigError,
    Event,
    Filter,
    MemoryBroker,
    MemoryStore,
    Outbox,
    Relay,
    SchemaError,
    State,
    StoreError,
    migrate,
    open_store,
)
from postroom.registry import load_store
from postroom.stores.sqlite import SqliteStore


@pytest.fixture
async def url(tmp_path):
    url = f"sqlite:///{tmp_path}/app.db"
    await migrate(url)
    return url


async def test_a_store_is_opened_and_closed(url):
    async with open_store(url) as store:
        assert await store.find(Filter(state=State.DEAD)) == []
    with pytest.raises(StoreError, match="not open"):
        await store.find(Filter())


async def test_it_is_closed_after_an_error(url):
    with pytest.raises(ZeroDivisionError):
        async with open_store(url) as store:
            raise ZeroDivisionError
    with pytest.raises(StoreError, match="not open"):
        await store.streams()


async def test_a_store_that_cannot_be_opened_leaves_nothing_behind(tmp_path):
    url = f"sqlite:///{tmp_path}/app.db"
    with pytest.raises(SchemaError):
        async with open_store(url):
            pytest.fail("it has no tables")
    store = SqliteStore(tmp_path / "app.db")
    with pytest.raises(SchemaError):
        async with store:
            pytest.fail("it has no tables")
    await store.migrate()
    async with store:  # its count of users is right: this one closes it
        assert await store.streams() == []
    with pytest.raises(StoreError, match="not open"):
        await store.streams()


async def test_an_unknown_scheme_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'sqlite'"):
        async with open_store("sqlit:///app.db"):
            pytest.fail("there is no such store")


async def test_a_relay_that_stops_does_not_close_the_store_of_the_block(url):
    async with open_store(url) as store:
        async with store.transaction() as tx:
            await Outbox().add(tx, Event("order.created", {"total": 10}))
        await Relay(store, broker := MemoryBroker()).drain()
        assert len(broker.messages) == 1
        (record,) = await store.find(Filter())
        assert record.state == State.DONE


async def test_a_store_may_be_given_as_an_object(url):
    given = SqliteStore(url)
    async with open_store(given) as store:
        assert store is given
        assert await store.streams() == []
    with pytest.raises(StoreError, match="not open"):
        await given.streams()
    with pytest.raises(ConfigError, match="options are for a URL"):
        async with open_store(given, prefix="a_"):
            pytest.fail("it has a prefix")


async def test_a_store_takes_options_by_name(tmp_path):
    url = f"sqlite:///{tmp_path}/app.db"
    await SqliteStore(url, prefix="billing_").migrate()
    async with open_store(url, prefix="billing_") as store:
        assert store.tables.prefix == "billing_"
    with pytest.raises(ConfigError, match="unknown sqlite option 'prefx'; did you mean 'prefix'"):
        async with open_store(url, prefx="billing_"):
            pytest.fail("there is no such option")


async def test_a_store_object_is_a_context_manager():
    async with MemoryStore() as store:
        assert await store.streams() == []


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("sqlite:////a.db", {}, "sqlite:////a.db"),
        ("sqlite:////a.db", {"prefix": "billing_"}, "sqlite:////a.db?prefix=billing_"),
        ("sqlite:////a.db?prefix=billing_", {}, "sqlite:////a.db?prefix=billing_"),
        ("mysql://u:x@h/d?prefix=billing_", {}, "mysql://u@h:3306/d?prefix=billing_"),
        ("mysql://u:x@h/d", {"prefix": "billing_"}, "mysql://u@h:3306/d?prefix=billing_"),
        ("mongodb://h/d?prefix=billing_", {}, "mongodb://h/d?prefix=billing_"),
        ("mongodb://h/d", {"prefix": "billing_"}, "mongodb://h/d?prefix=billing_"),
        ("postgresql://u@h/d?schema=app", {}, "postgresql://u@h/d?schema=app"),
        (
            "postgresql://u:x@h/d",
            {"prefix": "billing_", "schema": "app"},
            "postgresql://u@h/d?schema=app&prefix=billing_",
        ),
    ],
)
def test_the_url_of_a_store_names_its_tables(url, options, named):  # U13
    """Messages say `run: postroom migrate --store URL`: it must not create other tables."""
    assert load_store(url, **options).url == named
