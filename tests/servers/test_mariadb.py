"""MariaDB, with PyMySQL and asyncmy."""

from typing import Any
from urllib.parse import urlsplit

import asyncmy
import pymysql
import pytest


def arguments(url: str) -> dict[str, Any]:
    """Give a URL in the form that the drivers of MySQL take."""
    parts = urlsplit(url)
    login = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    return {**login, "password": parts.password or "", "database": parts.path.removeprefix("/")}


def test_transaction(mariadb_url: str) -> None:
    one = pymysql.connect(**arguments(mariadb_url))
    other = pymysql.connect(**arguments(mariadb_url), autocommit=True)
    with one, other, one.cursor() as writer, other.cursor() as reader:
        reader.execute("SELECT VERSION(), @@character_set_database, @@default_storage_engine")
        version, text, engine = reader.fetchall()[0]
        assert version.startswith("10.11.")
        assert (text, engine) == ("utf8mb4", "InnoDB")
        writer.execute("CREATE TABLE smoke (id int PRIMARY KEY)")
        writer.execute("INSERT INTO smoke VALUES (1)")
        one.rollback()
        writer.execute("INSERT INTO smoke VALUES (2)")
        reader.execute("SELECT id FROM smoke")
        assert list(reader.fetchall()) == []
        one.commit()
        reader.execute("SELECT id FROM smoke")
        assert list(reader.fetchall()) == [(2,)]
        reader.execute("DROP TABLE smoke")


@pytest.mark.asyncio
async def test_the_async_driver_connects(mariadb_url: str) -> None:
    connection = await asyncmy.connect(**arguments(mariadb_url))
    async with connection, connection.cursor() as cursor:
        await cursor.execute("SELECT %s", ["é😀"])
        assert await cursor.fetchone() == ("é😀",)


def test_a_restart_after_a_kill_keeps_what_was_committed(own_server: Any) -> None:
    server = own_server("mariadb")
    with pymysql.connect(**arguments(server.url)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept AS SELECT 1 AS id")
        connection.commit()
    server.restart()
    with pymysql.connect(**arguments(server.url)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM kept")
        assert list(cursor.fetchall()) == [(1,)]
