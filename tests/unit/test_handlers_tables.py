"""Which tables handlers write to: those of the store they are bound to (R-A3)."""

from __future__ import annotations

import pytest

from postroom import ConfigError, Handlers, Inbox, Outbox, SyncInbox
from postroom.registry import load_store
from postroom.store import Tables
from tests.unit.handler_database import Database

PAY = Tables("pay_", "app")


def database(tables=PAY):
    found = Database()
    found.tables = tables
    return found


def names(handlers):
    scopes = (handlers._scope, handlers._sync_scope)
    return [(scope.tables, scope.outbox.prefix) for scope in scopes]


def own():
    raise NotImplementedError


def test_names_are_those_of_the_store():
    assert names(Handlers().bind(database())) == [(PAY, "app.pay_")] * 2


def test_transactions_of_ones_own_have_the_same_names():
    found = names(Handlers(name="handlers", transaction=own, sync_transaction=own).bind(database()))
    assert found == [(PAY, "app.pay_")] * 2


def test_names_that_were_given_are_for_transactions_of_ones_own():
    bound = Handlers(name="handlers", transaction=own, prefix="other_").bind(database())
    other = Tables("other_", "app")
    assert names(bound) == [(other, "app.other_"), (PAY, "app.pay_")]


def test_the_same_names_twice_are_no_contradiction():
    assert names(Handlers(prefix="pay_").bind(database())) == [(PAY, "app.pay_")] * 2


@pytest.mark.parametrize("given", [{"prefix": "other_"}, {"schema": "public"}])
def test_other_names_than_the_stores_are_refused(given):
    with pytest.raises(ConfigError, match="leave prefix and schema out"):
        Handlers(**given).bind(database())


@pytest.mark.parametrize("given", [{"prefix": 'x"; DROP'}, {"schema": "a.b"}])
def test_what_is_no_name_is_refused_at_once(given):
    with pytest.raises(ConfigError, match="lower-case letters"):
        Handlers(**given)


def test_an_outbox_of_ones_own_gets_the_names_of_the_store():
    outbox = Outbox(routes={"a": "topic"})
    bound = Handlers(outbox=outbox).bind(database())
    assert bound._scope.outbox._routes is outbox._routes
    assert names(bound)[0] == (PAY, "app.pay_")
    assert outbox.prefix == "postroom_"


def test_an_outbox_with_other_names_is_refused_in_the_stores_transactions():
    with pytest.raises(ConfigError, match="the outbox has prefix='other_'"):
        Handlers(outbox=Outbox(prefix="other_")).bind(database())


def test_an_outbox_with_other_names_keeps_them_in_transactions_of_ones_own():
    bound = Handlers(outbox=Outbox(prefix="other_"), transaction=own).bind(database())
    assert names(bound)[0] == (PAY, "other_")


def test_a_twin_for_a_second_store_has_the_names_of_that_one():
    handlers = Handlers()
    handlers.bind(database())
    twin = handlers.bind(database(Tables("two_")))
    assert names(twin) == [(Tables("two_"), "two_")] * 2
    assert names(handlers) == [(PAY, "app.pay_")] * 2


def test_handlers_without_a_store_use_the_default_names():
    assert names(Handlers(name="handlers", transaction=own))[0] == (Tables(), "postroom_")


def test_an_inbox_takes_the_names_of_a_store():  # U13
    for kind in (Inbox, SyncInbox):
        inbox = kind("payments")
        assert (inbox.prefix, inbox.within(PAY).prefix) == ("postroom_", "app.pay_")
        assert kind("payments", schema="app").within(PAY).prefix == "app.pay_"
        with pytest.raises(ConfigError, match="the inbox has schema='public' but the store has"):
            kind("payments", schema="public").within(PAY)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///x.db?schema=app",
        "mysql://h/db?schema=app",
        "mongodb://h/db?schema=app",
        "memory:?schema=app",
    ],
)
def test_databases_without_schemas_refuse_one(url):  # U13
    with pytest.raises(ConfigError):
        load_store(url)
