"""The part of a run that a violation is about: what happened to one event, in the order of time."""

from __future__ import annotations

import json
import re

from postroom.record import key_hash, lane_of
from tests.torture.checker import STREAM, WINDOW_SECONDS

ID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")
MOST_LINES = 40
_FAULTS = ("fault", "mended", "healed")


def excerpt(evidence, violations):
    """Return the lines that tell the story of the first event that a violation names."""
    named = ID.search("\n".join(violations))
    if named is None:
        return []
    event_id = named[0]
    lines = [line for line in evidence.histories if _mentions(line, event_id)]
    lines += [
        {"at": row.at, "what": "became done", "owner": row.owner, "writer": row.writer}
        for row in evidence.settled
        if row.id == event_id
    ]
    if not lines:
        return []
    first = min(line["at"] for line in lines) - WINDOW_SECONDS
    last = max(line["at"] for line in lines) + WINDOW_SECONDS
    lines += [line for line in _around(evidence, event_id) if first <= line["at"] <= last]
    lines.sort(key=lambda line: line["at"])
    story = [json.dumps({**line, **_short(line, event_id)}) for line in lines]
    if len(story) > MOST_LINES:
        half = MOST_LINES // 2
        story = [*story[:half], f"… {len(story) - MOST_LINES} more …", *story[-half:]]
    return [f"The story of {event_id}:", *story]


def _mentions(line, event_id):
    return line.get("id") == event_id or event_id in (line.get("ids") or ())


def _short(line, event_id):
    """A batch is of interest for one event only."""
    return {"ids": [event_id, f"and {len(line['ids']) - 1} more"]} if line.get("ids") else {}


def _around(evidence, event_id):
    """What happened to its lane, and what the nemesis did meanwhile."""
    if event_id in evidence.committed:
        lane = lane_of(key_hash(None, evidence.committed[event_id][0], ""))
        for taken in evidence.leases:
            if (taken.stream, taken.lane) == (STREAM, lane):
                yield {"what": "lane", **taken._asdict()}
    for line in evidence.histories:
        if line.get("process") == "nemesis" and line["what"] in _FAULTS:
            yield line
