"""The tables that handlers write to: inbox, counters, outbox.

In the store's own transactions they are always the store's. In transactions from the user they have
the same names, unless the user gave others.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from postroom.errors import ConfigError
from postroom.outbox import Outbox, SyncOutbox
from postroom.store import Tables
from postroom.transactions.queries import qualify

Box = TypeVar("Box", Outbox, SyncOutbox)


class Given(NamedTuple):
    """The table names given to handlers; None: those of the store."""

    prefix: str | None = None
    schema: str | None = None

    def over(self, tables: Tables) -> Tables:
        """Return the store's names, overridden by these. Raises ConfigError for an invalid one."""
        prefix = tables.prefix if self.prefix is None else self.prefix
        schema = tables.schema if self.schema is None else self.schema
        qualify(prefix, schema)
        return Tables(prefix, schema)


class HandlerTables(NamedTuple, Generic[Box]):
    """The names of the tables, and the outbox that `context.add` adds with."""

    tables: Tables
    outbox: Box

    @property
    def prefix(self) -> str:
        return self.tables.qualified


def tables_for(
    given: Given, outbox: Box, tables: Tables, *, own_factory: bool
) -> HandlerTables[Box]:
    """Return the tables of handlers that are bound to a store with these tables."""
    if not own_factory:
        return HandlerTables(tables, outbox.within(tables))
    chosen = given.over(tables)
    return HandlerTables(chosen, outbox if outbox.names_tables else outbox.within(chosen))


def refuse_other_names(given: Given, tables: Tables) -> None:
    """Raise ConfigError for names that the store's own transactions cannot use."""
    if given.over(tables) != tables:
        raise ConfigError(
            f"handlers have prefix={given.prefix!r}, schema={given.schema!r}, but run in the "
            f"transactions of a store whose tables are {tables.qualified}…: leave prefix and "
            "schema out, they come from the store"
        )
