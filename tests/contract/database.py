"""A database of one's own on a shared server, with the tables of postroom and of a small business."""

from __future__ import annotations

import uuid
from importlib.resources import files
from urllib.parse import urlsplit

import psycopg
import pymysql
from psycopg.rows import dict_row
from pymysql.constants import CLIENT

TABLES = ("postroom_outbox", "postroom_counter", "postroom_inbox", "orders")


def script(store):
    """All migrations of a store, in order."""
    folder = files("postroom") / "stores" / store / "migrations"
    steps = sorted(folder.iterdir(), key=lambda file: file.name)
    return "\n".join(
        file.read_text(encoding="utf-8") for file in steps if file.name.endswith(".sql")
    )


class PostgresDatabase:
    """A database of its own on the server; drivers connect by `url` or by `arguments`."""

    instant = "'2024-02-29 12:30:00+00'"

    def __init__(self, server_url):
        self.name = f"tx_{uuid.uuid4().hex[:12]}"
        self.server_url = server_url
        self.url = server_url.rpartition("/")[0] + f"/{self.name}"
        parts = urlsplit(self.url)
        self.arguments = {
            "host": parts.hostname, "port": parts.port, "user": parts.username,
            "password": parts.password, "database": self.name,
        }  # fmt: skip

    def create(self):
        with psycopg.connect(self.server_url, autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE {self.name}")
        with psycopg.connect(self.url) as conn:
            conn.execute(script("postgres"))
            conn.execute("CREATE TABLE orders (n bigint GENERATED ALWAYS AS IDENTITY, name text)")

    def drop(self):
        with psycopg.connect(self.server_url, autocommit=True) as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")

    def clear(self):
        with psycopg.connect(self.url) as conn:
            for table in TABLES:
                conn.execute(f"DELETE FROM {table}")

    def run(self, sql):
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(sql)

    def rows(self, table="postroom_outbox"):
        with psycopg.connect(self.url, row_factory=dict_row) as conn:
            return conn.execute(f"SELECT * FROM {table} ORDER BY {place(table)}").fetchall()

    def sqlalchemy(self, driver):
        return self.url.replace("postgresql:", f"postgresql+{driver}:")


class MariadbDatabase:
    """A database of its own on the server."""

    instant = "'2024-02-29 12:30:00'"

    def __init__(self, server_url):
        self.name = f"tx_{uuid.uuid4().hex[:12]}"
        parts = urlsplit(server_url)
        self.server = {
            "host": parts.hostname, "port": parts.port, "user": parts.username,
            "password": parts.password or "",
        }  # fmt: skip
        self.arguments = {**self.server, "database": self.name}
        self.url = server_url.rpartition("/")[0] + f"/{self.name}"

    def create(self):
        with pymysql.connect(**self.server) as conn, conn.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {self.name}")
        many = {"client_flag": CLIENT.MULTI_STATEMENTS}
        with (
            pymysql.connect(ssl_disabled=True, **self.arguments, **many) as conn,
            conn.cursor() as cursor,
        ):
            cursor.execute(script("mysql"))
            while cursor.nextset():
                pass
            cursor.execute(
                "CREATE TABLE orders (n INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40))"
            )

    def drop(self):
        with pymysql.connect(**self.server) as conn, conn.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {self.name}")

    def clear(self):
        with pymysql.connect(ssl_disabled=True, **self.arguments) as conn, conn.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"DELETE FROM {table}")
            conn.commit()

    def run(self, sql):
        with (
            pymysql.connect(ssl_disabled=True, **self.arguments, autocommit=True) as conn,
            conn.cursor() as cursor,
        ):
            cursor.execute(sql)

    def rows(self, table="postroom_outbox"):
        with pymysql.connect(ssl_disabled=True, **self.arguments) as conn:
            with conn.cursor(pymysql.cursors.DictCursor) as cursor:
                cursor.execute(f"SELECT * FROM {table} ORDER BY {place(table)}")
                return [{n: text(n, v) for n, v in row.items()} for row in cursor.fetchall()]

    def sqlalchemy(self, driver):
        return self.url.replace("mysql:", f"mysql+{driver}:") + "?charset=utf8mb4"


def place(table):
    return "seq" if table.endswith("outbox") else "1"


def text(name, value):
    """Binary columns hold UTF-8, but for the two that hold bytes; the year 9999 is not yet."""
    if name == "settled_at" and value.year == 9999:
        return None
    if isinstance(value, bytes) and name not in ("key_hash", "payload_bytes"):
        return value.decode()
    return value
