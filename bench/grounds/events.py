"""The events that are delivered, and the rows that stand around them."""

import json

from postroom.event import Event
from postroom.outbox import to_row
from postroom.record import key_hash, lane_of

PAYLOAD = {"order": 4711, "total": 129.9, "items": ["a", "b", "c"], "note": "x" * 120}
PAYLOAD_TEXT = json.dumps(PAYLOAD)


def rows(events, keys, hot=0.0):
    """Yield the rows of events over so many keys; `hot` is the part that goes to one key."""
    for n in range(events):
        key = "hot" if hot and n % 100 < hot * 100 else f"k{n % keys}"
        yield to_row(Event("bench", PAYLOAD, key=key), "bench")


BLOCKED = key_hash(None, "blocked", "")
BLOCKED_LANE = lane_of(BLOCKED)


def message(row):
    """Key, payload and headers of a row that a bare loop read, as many bytes as a relay sends."""
    return (
        row[7],
        row[10],
        [
            ("postroom-id", row[1]),
            ("postroom-type", row[5]),
            ("content-type", row[11]),
            ("postroom-schema-version", str(row[15])),
            ("postroom-occurred-at", str(row[17])),
            ("postroom-key", row[7]),
        ],
    )
