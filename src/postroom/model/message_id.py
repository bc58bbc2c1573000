"""The id by which an inbox recognises a message.

The sender's id is the best: the header `postroom-id`, which `foreign_messages` also fills from a
CloudEvent or a header that an option names, or the broker's property. Without one, `hash` uses
sha256 over `routing_key:body`, on Kafka including the record's key. That id treats a second message
with the same body (two identical orders) as a duplicate. Alternatives are `reject`, which turns a
message without an id into a dead letter, and `offset`, which uses the position in Kafka's log: it
recognises redeliveries, but not a copy that the sender sent twice.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, NamedTuple

from postroom.errors import EventError
from postroom.event import MAX_NAME_BYTES
from postroom.model.envelope import TOMBSTONE, Envelope, read_headers
from postroom.model.incoming import Incoming
from postroom.model.text import TextError, check_text

MissingId = Literal["hash", "reject", "offset"]


class MessageId(NamedTuple):
    """An id, and whether it was derived from the body."""

    text: str
    hashed: bool = False


def hash_id(topic: str, body: bytes) -> str:
    """Return sha256 over `routing_key:body`, in hexadecimal."""
    return sha256(topic.encode(errors="surrogatepass") + b":" + body).hexdigest()


def record_hash(message: Incoming) -> str:
    """Return sha256 over topic, key and body of a record in a log, in hexadecimal.

    A compacted topic contains the same body, or tombstones, under many keys.
    """
    digest = sha256(b"record")
    is_tombstone = TOMBSTONE in message.headers and not message.body
    key = None if message.key is None else message.key.encode(errors="surrogatepass")
    body = None if is_tombstone else message.body
    for part in (message.topic.encode(errors="surrogatepass"), key, body):
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return digest.hexdigest()


def identify(
    message: Incoming, missing_id: MissingId, envelope: Envelope | None = None
) -> MessageId:
    """Return the id of a message. Raises EventError if it has none and `missing_id` is reject."""
    found = (envelope or read_headers(message.headers)).id
    if found:
        return MessageId(_fit(found))
    if message.problem and message.offset is not None:
        return MessageId(_fit(message.offset))
    match missing_id:
        case "offset" if message.offset is not None:
            return MessageId(_fit(message.offset))
        case "hash" if message.offset is not None:
            return MessageId(record_hash(message), hashed=True)
        case "hash":
            return MessageId(hash_id(message.topic, message.body), hashed=True)
        case _:
            raise EventError(
                "id", "is missing, and missing_id='reject'. Set an id at the sender, or use 'hash'"
            )


def media_type(envelope: Envelope, body: bytes) -> str:
    """Return the media type without parameters; guessed from the body if it is missing."""
    said = (envelope.content_type or "").partition(";")[0].strip().lower()
    if said:
        is_json = said == "application/json" or said.endswith("+json")
        return "application/json" if is_json else said
    return "application/json" if body.lstrip()[:1] in (b"{", b"[") else "application/octet-stream"


def _fit(text: str) -> str:
    """Return the id, or its hash if an inbox cannot store it."""
    try:
        check_text("id", text, MAX_NAME_BYTES)
    except TextError:
        return "sha256:" + sha256(text.encode(errors="surrogatepass")).hexdigest()
    return text
