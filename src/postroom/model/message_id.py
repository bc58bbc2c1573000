"""Which message is it? The id by which an inbox knows a message again (S5.5).

The sender's own id is the best: the header `postroom-id`, which `foreign_messages` also fills from
a CloudEvent or a header that an option names, or the broker's property. Without one the document
asks for sha256 over `routing_key:body`; on Kafka the key of the record counts as well. That id
drops a genuine second message with the same body, two coffees ordered one after the other, so it
can be replaced: `reject` makes a dead letter of a message without an id, and `offset` uses its
place in Kafka's log, which knows a redelivery again but not a copy that its sender sent twice.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, NamedTuple

from postroom.errors import EventError
from postroom.event import MAX_NAME_BYTES
from postroom.model.envelope import Envelope, read_headers
from postroom.model.incoming import TOMBSTONE, Incoming
from postroom.model.text import TextError, check_text

MissingId = Literal["hash", "reject", "offset"]


class MessageId(NamedTuple):
    """An id, and whether it was made here from the body."""

    text: str
    hashed: bool = False


def hash_id(topic: str, body: bytes) -> str:
    """Return sha256 over `routing_key:body`, in hexadecimal."""
    return sha256(topic.encode(errors="surrogatepass") + b":" + body).hexdigest()


def record_hash(message: Incoming) -> str:
    """Return sha256 over topic, key and body of a record in a log, in hexadecimal.

    A compacted topic holds one body under many keys, and a tombstone for each of them.
    """
    digest = sha256(b"record")
    is_tombstone = TOMBSTONE in message.headers
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
                "id", "is missing: the sender gave the message none, and missing_id='reject'"
            )


def media_type(envelope: Envelope, body: bytes) -> str:
    """Return the media type without parameters; guessed from the body if nobody said."""
    said = (envelope.content_type or "").partition(";")[0].strip().lower()
    if said:
        is_json = said == "application/json" or said.endswith("+json")
        return "application/json" if is_json else said
    return "application/json" if body.lstrip()[:1] in (b"{", b"[") else "application/octet-stream"


def _fit(text: str) -> str:
    """Return an id as it is, if an inbox can keep it; else a hash of it."""
    try:
        check_text("id", text, MAX_NAME_BYTES)
    except TextError:
        return "sha256:" + sha256(text.encode(errors="surrogatepass")).hexdigest()
    return text
