"""A database of one's own on a MariaDB server, and a look at it from outside."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import asyncmy
import pymysql

from postroom.stores.mysql import MysqlStore


class MysqlDatabase:
    """An empty database; `url` names it, `arguments` are what drivers take."""

    def __init__(self, server_url):
        self.name = f"store_{uuid.uuid4().hex[:12]}"
        self.server_url = server_url
        self.url = server_url.rpartition("/")[0] + f"/{self.name}"
        parts = urlsplit(server_url)
        self.server = {
            "host": parts.hostname,
            "port": parts.port,
            "user": parts.username,
            "password": parts.password or "",
        }
        self.arguments = {**self.server, "database": self.name}

    def create(self):
        with pymysql.connect(**self.server) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {self.name}")
        return self

    def drop(self):
        with pymysql.connect(**self.server) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {self.name}")

    def run(self, *statements):
        """Run statements, each committed by itself; returns the rows of the last."""
        with pymysql.connect(**self.arguments, autocommit=True) as connection:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())

    @contextmanager
    def connection(self, **options):
        """A connection of somebody else, with a cursor."""
        with pymysql.connect(**self.arguments, **options) as connection:
            with connection.cursor() as cursor:
                yield connection, cursor

    @asynccontextmanager
    async def store(self, url=None, **options):
        """A store on this database, migrated and opened."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        store = MysqlStore((url or self.url) + (f"?{query}" if query else ""))
        await MysqlStore(self.url).migrate()
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def writing(self):
        """A transaction of a writer: commit at the end, or rollback."""
        connection = await asyncmy.connect(**self.arguments, charset="utf8mb4")
        try:
            await connection.begin()
            yield connection
            await connection.commit()
        finally:
            await connection.ensure_closed()


@contextmanager
def own_database(server_url):
    """Make a database for one test."""
    database = MysqlDatabase(server_url).create()
    try:
        yield database
    finally:
        database.drop()
