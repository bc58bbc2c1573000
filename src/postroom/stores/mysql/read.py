"""Reads the events that may be sent now, fair over lanes, in one statement (rules R1 to R4, B2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

from postroom.model.unreadable_rows import to_records
from postroom.record import Record, lane_of
from postroom.store import ReadRequest
from postroom.stores.mysql.records import decoded
from postroom.stores.mysql.session import Session

_seq = itemgetter(0)


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
