"""The read: events that may be sent now, fair over lanes, in one statement (rules R1 to R4, B2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

from postroom.model.unreadable_rows import TYPES, decode, to_records
from postroom.record import Record, lane_of
from postroom.store import ReadRequest
from postroom.stores.mysql.session import Session

_seq = itemgetter(0)
_TEXTS = tuple(
    place for place, (name, kinds) in enumerate(TYPES.items()) if str in kinds and name != "state"
)


async def read(session: Session, request: ReadRequest) -> list[Record]:
    """Return the rows in the order of `seq`.

    MariaDB has no LATERAL: each lane has its own SELECT, joined by UNION. One scan over several
    lanes would sort all their rows.
    """
    lanes, tokens = request.lanes, None
    if request.owner is not None:
        tokens = request.tokens
        lanes = [lane for lane in lanes if lane in tokens]
    if not lanes:
        return []
    rows = await session.rows(
        "read",
        parts={"lanes": lanes_of(session.sql, lanes, request.exclude, tokens)},
        stream=request.stream,
        owner=request.owner,
        per_lane=request.per_lane,
        rows=max(request.rows, 1),
        size=request.size,
    )
    return to_records(map(decoded, sorted(rows, key=_seq)))


def decoded(row: Sequence[Any]) -> list[Any]:
    """Return a row of `columns.sql` with its texts decoded."""
    fields = list(row)
    for place in _TEXTS:
        stored = fields[place]
        if stored is not None:
            fields[place] = decode(stored)
    return fields


def lanes_of(
    sql: Mapping[str, str],
    lanes: Sequence[int],
    exclude: Collection[bytes] = (),
    tokens: Mapping[int, int] | None = None,
) -> str:
    """Return the part of a statement that scans each lane from its lowest event.

    A key to leave out is named in its own lane only: the other lanes use the index alone. With
    tokens, a lane is scanned only if its reader holds it.
    """
    template = sql["read_lane"].replace("{held}", "" if tokens is None else f" {sql['read_held']}")
    left_out: dict[int, list[bytes]] = defaultdict(list)
    for hashed in exclude:
        left_out[lane_of(hashed)].append(hashed)
    return " UNION ALL ".join(
        template.replace("{place}", str(place))
        .replace("{lane}", str(int(lane)))
        .replace("{token}", str(int(tokens[lane])) if tokens is not None else "")
        .replace("{except}", _without(left_out.get(lane)))
        for place, lane in enumerate(lanes)
    )


def _without(keys: Sequence[bytes] | None) -> str:
    if not keys:
        return ""
    return f" AND key_hash NOT IN ({', '.join(f'0x{key.hex()}' for key in keys)})"
