"""Leases and members (rules L1 to L5)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from postroom.model.durations import span_microseconds
from postroom.record import LANES
from postroom.store import Member, Membership
from postroom.stores.membership import make_membership, with_free_lanes
from postroom.stores.sqlite.thread import Database

_FORGOTTEN_AFTER_LEASES = 10


def heartbeat(
    db: Database, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
) -> Membership:
    with db.change() as now:
        lease = span_microseconds(lease_seconds)
        db.run(
            "beat_member",
            stream=stream,
            owner=member.owner,
            name=member.name,
            healthy=member.healthy,
            until=now + lease,
            length=abs(lease),
        )
        long_ago = now - _FORGOTTEN_AFTER_LEASES * abs(lease)
        db.run("beat_forget", stream=stream, long_ago=long_ago, now=now)
        renewed = db.rows(
            "beat_renew",
            stream=stream,
            owner=member.owner,
            held=_pairs(held),
            until=now + lease,
            length=abs(lease),
        )
        membership = _look(db, stream, now)
        if len(membership.leases) < LANES:
            db.run("beat_lanes", stream=stream)
            membership = _look(db, stream, now)
        return membership._replace(renewed=frozenset(lane for (lane,) in renewed))


def take(
    db: Database, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
) -> dict[int, int]:
    with db.change() as now:
        db.run("beat_lanes", stream=stream)
        lease = span_microseconds(lease_seconds)
        taken = db.rows(
            "take",
            stream=stream,
            owner=owner,
            lanes=json.dumps(list(lanes)),
            now=now,
            until=now + lease,
            length=abs(lease),
        )
        return dict(taken)


def retake(
    db: Database,
    stream: str,
    owner: str,
    held: Mapping[int, int],
    lease_seconds: float,
    doubt_seconds: float,
) -> dict[int, int]:
    with db.change() as now:
        lease = span_microseconds(lease_seconds)
        taken = db.rows(
            "retake",
            stream=stream,
            owner=owner,
            held=_pairs(held),
            since=now - span_microseconds(doubt_seconds),
            until=now + lease,
            length=abs(lease),
        )
        return dict(taken)


def release(db: Database, stream: str, owner: str, held: Mapping[int, int]) -> None:
    with db.change():
        db.run("release", stream=stream, owner=owner, held=_pairs(held))


def leave(db: Database, stream: str, owner: str) -> None:
    with db.change():
        db.run("leave", stream=stream, owner=owner)
        db.run("leave_member", stream=stream, owner=owner)


def leases(db: Database, stream: str) -> Membership:
    with db.snapshot() as now:
        membership = _look(db, stream, now)
    return with_free_lanes(membership)


def held_lanes(
    db: Database, stream: str, owner: str, leases: Mapping[int, int], now: int
) -> set[int]:
    """Return the lanes that are still held with these tokens; inside a change it is the fence."""
    live = dict(db.rows("settle_fence", stream=stream, owner=owner, now=now))
    return {lane for lane, token in leases.items() if live.get(lane) == token}


def _look(db: Database, stream: str, now: int) -> Membership:
    members = db.rows("leases_members", stream=stream, now=now)
    lanes = db.rows("leases", stream=stream, now=now)
    return make_membership(members, lanes)


def _pairs(held: Mapping[int, int]) -> str:
    return json.dumps(list(held.items()))
