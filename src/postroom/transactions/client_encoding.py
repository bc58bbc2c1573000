"""The client encoding of the caller's PostgreSQL connection, as reported by the server."""

from __future__ import annotations

from typing import Any

from postroom.errors import TransactionError


def refuse_encoding(connection: Any) -> None:
    """Raise TransactionError if the connection cannot represent every text unchanged.

    The server reports every change of the encoding: no query is needed.
    """
    encoding = _encoding(connection)
    if encoding is not None and encoding.upper().replace("-", "") not in ("UTF8", "UNICODE"):
        raise TransactionError(
            f"this connection's client_encoding is {encoding}, which cannot represent all of "
            "Unicode. Connect with client_encoding='utf8'; the setting may come from "
            "PGCLIENTENCODING or from ALTER ROLE … SET client_encoding"
        )


def _encoding(connection: Any) -> str | None:
    if (pgconn := getattr(connection, "pgconn", None)) is not None:  # psycopg
        told = pgconn.parameter_status(b"client_encoding")
        return None if told is None else told.decode()
    if (settings := getattr(connection, "get_settings", None)) is not None:  # asyncpg
        return getattr(settings(), "client_encoding", None)
    if (
        ask := getattr(connection, "get_parameter_status", None)
    ) is not None:  # psycopg2, by Django
        return ask("client_encoding")  # type: ignore[no-any-return]
    return None
