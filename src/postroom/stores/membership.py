"""Converts rows of members and leases to a Membership; rows that no relay wrote are left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from postroom.record import LANES
from postroom.store import Lease, Member, Membership


def make_membership(
    members: Iterable[tuple[Any, ...]], leases: Iterable[tuple[Any, ...]]
) -> Membership:
    """Return the membership that a heartbeat reads.

    members   (owner, healthy, name) of live members; one whose owner is not text is left out
    leases    (lane, owner, token, live); an invalid lane is left out; a lane whose token is not a
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


def with_free_lanes(membership: Membership) -> Membership:
    """Return it with all lanes: one without a row is free."""
    there = {lease.lane: lease for lease in membership.leases}
    free = (Lease(lane, None, 0, live=False) for lane in range(LANES))
    return Membership(membership.members, tuple(there.get(lease.lane, lease) for lease in free))


def _text(name: Any) -> str:
    return str(name) if isinstance(name, str) else ""
