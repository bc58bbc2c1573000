"""Idempotent writes: one document for each natural key, however often it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError

from postroom.transactions.steps import Steps, run, run_async


async def upsert(
    collection: Any,
    key: Any,
    fields: Mapping[str, Any],
    *,
    tx: Any = None,
    version: int | None = None,
) -> bool:
    """Write the document with this natural key as its `_id`, new or not; True if it was written.

    `tx` is the handler's: with a session the write is part of the handler's transaction. A
    `version` is stored in the document, and only a greater one overwrites it: an older event that
    arrives again changes nothing.
    """
    return await run_async(_upsert(collection, key, fields, tx, version))


def upsert_sync(
    collection: Any,
    key: Any,
    fields: Mapping[str, Any],
    *,
    tx: Any = None,
    version: int | None = None,
) -> bool:
    """The same for handlers in threads."""
    return run(_upsert(collection, key, fields, tx, version))


def _upsert(
    collection: Any, key: Any, fields: Mapping[str, Any], tx: Any, version: int | None
) -> Steps[bool]:
    session = tx if isinstance(tx, (ClientSession, AsyncClientSession)) else None
    written: dict[str, Any] = {"$literal": {**fields, "_id": key}}
    change: list[dict[str, Any]] = [{"$replaceWith": {"$mergeObjects": ["$$ROOT", written]}}]
    if version is not None:
        fresh = {"$mergeObjects": ["$$ROOT", written, {"version": version}]}
        newer = {"$lt": ["$version", version]}
        change = [{"$replaceWith": {"$cond": [newer, fresh, "$$ROOT"]}}]
    try:
        result = yield collection.update_one({"_id": key}, change, upsert=True, session=session)
    except DuplicateKeyError:  # another process created it at this moment; now it exists
        if session is not None:
            raise
        result = yield collection.update_one({"_id": key}, change, upsert=True)
    return version is None or bool(result.modified_count or result.upserted_id is not None)
