"""Rows of members and leases as a Roster; a row that no relay has written is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from postroom.record import LANES
from postroom.store import Lease, Member, Membership


def make_membership(
    members: Iterable[tuple[Any, ...]], leases: Iterable[tuple[Any, ...]]
) -> Membership:
    """Return what a beat sees.

    members   (owner, healthy, name) of the live ones; one whose owner is no text is nobody
    leases    (lane, owner, token, live); what is no lane is left out, and a lane whose token is no
              number is free: the next take gives it a new one
    """
    known: dict[int, Lease] = {}
    for lane, owner, token, live in leases:
        if type(lane) is int and 0 <= lane < LANES and lane not in known:
            sound = type(token) is int
            held_by = None if owner is None else str(owner)
            known[lane] = Lease(lane, held_by, token if sound else 0, bool(live) and sound)
    return Membership(
        tuple(
            Member(str(owner), bool(healthy), _text(name))
            for owner, healthy, name in members
            if isinstance(owner, str)
        ),
        tuple(known[lane] for lane in sorted(known)),
    )


def _text(name: Any) -> str:
    return str(name) if isinstance(name, str) else ""
