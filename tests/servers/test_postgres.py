"""PostgreSQL 15 and 18, with psycopg."""

from typing import Any

import psycopg
import pytest

from tests.servers.process import wait_until


@pytest.fixture(params=[("postgres_url", 15), ("postgres18_url", 18)], ids=["15", "18"])
def server(request: pytest.FixtureRequest) -> tuple[str, int]:
    name, version = request.param
    return request.getfixturevalue(name), version


@pytest.mark.server
def test_transaction(server: tuple[str, int]) -> None:
    url, version = server
    with psycopg.connect(url) as one, psycopg.connect(url, autocommit=True) as other:
        assert one.info.server_version // 10_000 == version
        one.execute("CREATE TABLE smoke (id int PRIMARY KEY)")
        one.commit()
        one.execute("INSERT INTO smoke VALUES (1)")
        one.rollback()
        one.execute("INSERT INTO smoke VALUES (2)")
        assert other.execute("SELECT id FROM smoke").fetchall() == []
        one.commit()
        assert other.execute("SELECT id FROM smoke").fetchall() == [(2,)]
        other.execute("DROP TABLE smoke")


@pytest.mark.server
def test_settings(server: tuple[str, int]) -> None:
    with psycopg.connect(server[0]) as connection:
        for name, value in [("fsync", "on"), ("wal_level", "logical"), ("server_encoding", "UTF8")]:
            row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            assert row == (value,), name


def test_a_restart_after_a_kill_keeps_what_was_committed(own_server: Any) -> None:
    server = own_server("postgres")
    url = server.url
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
        connection.commit()
        server.kill()
        assert server.pids == []
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    server.restart()
    assert server.url == url
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]


def test_a_frozen_server_does_not_answer_until_it_thaws(own_server: Any) -> None:
    server = own_server("postgres")
    server.freeze()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(server.url, connect_timeout=2)
    server.thaw()
    wait_until(server.answers, within=10, what="an answer after the thaw")


def test_the_newer_one_restarts_too(own_server: Any) -> None:
    server = own_server("postgres18")
    server.restart()
    with psycopg.connect(server.url) as connection:
        assert connection.info.server_version // 10_000 == 18
