"""Keys blocked by a failed head: lets them go on, repairs their blocks (rules B1 to B4).

The next state of a block is decided here, from the current state and the changes of the settle; the
changes are collected and written together.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymongo import DeleteMany, UpdateMany, UpdateOne

from postroom.record import Record
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.leases import fence
from postroom.transactions.mongo.documents import NEVER, Document, Place, key_id, seq_of

Change = UpdateMany | UpdateOne | DeleteMany

ADVANCE_STEP = 500
HEADS_STEP = 2_000  # blocks whose heads are read together
LIVE = ("ready", "waiting")


@dataclass(slots=True)
class Block:
    """A blocked key.

    barrier     the position of the last event that may be sent
    head        the id of that event
    live        it is unfinished: nothing behind it may move
    parked      (position, id) of the key's first parked followers, one more than a step moves
    """

    key_hash: bytes
    barrier: int
    head: str
    live: bool
    parked: list[tuple[int, str]] = field(default_factory=list)
    facts: Document = field(default_factory=dict)


class Blocks:
    """The blocks of some keys of a stream, and their pending changes."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._there: dict[bytes, Block] = {}
        self._changed: dict[bytes, None] = {}
        self._gone: dict[bytes, None] = {}
        self._parked: dict[bytes, dict[str, int]] = {}
        self._moved: list[str] = []
        self._strays: list[Any] = []
        self._behind: dict[str, bytes] = {}

    def add(self, block: Block) -> None:
        self._there[block.key_hash] = block

    def remove_stray(self, ident: Any) -> None:
        """Remove a document that is not a valid block of its key: no relay has written it."""
        self._strays.append(ident)

    def end(self, ids: Collection[str]) -> None:
        """These events finish with this settle."""
        for block in self._there.values():
            if block.head in ids:
                block.live = False

    def fail(self, record: Record) -> None:
        """Block the key at its failed event; a live barrier is only ever lowered (B1)."""
        block = self._there.get(record.key_hash)
        if block is not None and block.live and block.barrier <= record.seq:
            return
        facts = {
            "stream": record.stream,
            "lane": record.lane,
            "key_hash": record.key_hash,
            "aggregate_type": record.aggregate_type,
            "key": record.key,
        }
        parked = block.parked if block else []
        if block is not None and block.live:  # it waits behind the lower one; otherwise the key
            # would be freed when that one ends, and overtake it
            self._behind[block.head] = record.key_hash
        self._put(Block(record.key_hash, record.seq, record.id, True, parked, facts))

    def park(self, record: Record) -> None:
        """Park a follower, if its key is blocked below it (B3)."""
        block = self._there.get(record.key_hash)
        if block is not None and block.barrier < record.seq:
            self._parked.setdefault(record.key_hash, {})[record.id] = record.seq

    def advance(self, key_hash: bytes) -> bool:
        """Let a key whose barrier event has ended go on: its next followers, or all."""
        block = self._there.get(key_hash)
        if block is None or block.live:
            return False
        followers = list(block.parked)
        for name, seq in self._parked.get(key_hash, {}).items():
            insort(followers, (seq, name))
        step = followers[:ADVANCE_STEP]
        for _, name in step:
            self._parked.get(key_hash, {}).pop(name, None)
        self._moved += [name for _, name in step]
        if len(followers) > ADVANCE_STEP:
            seq, name = step[-1]
            self._put(Block(key_hash, seq, name, True, followers[ADVANCE_STEP:], block.facts))
        else:
            del self._there[key_hash]
            self._changed.pop(key_hash, None)
            self._gone[key_hash] = None
        return True

    def rename(self, key_hash: bytes, old: str, new: str) -> None:
        """Another event takes the position of a head (B6)."""
        block = self._there.get(key_hash)
        if block is not None and block.head == old:
            block.head, block.live = new, True
            self._put(block)

    def _put(self, block: Block) -> None:
        self._there[block.key_hash] = block
        self._changed[block.key_hash] = None
        self._gone.pop(block.key_hash, None)

    # -- changes ------------------------------------------------------------------------------
    @property
    def touched(self) -> int:
        """How many events are parked and unparked."""
        return len(self._moved) + sum(len(names) for names in self._parked.values())

    def event_changes(self) -> list[Change]:
        """Return the changes to events: parked and unparked ones."""
        changes: list[Change] = [
            UpdateMany(
                {
                    "_id": {"$in": list(names)},
                    "stream": self._stream,
                    "key_hash": key_hash,
                    "stage": "ready",
                    "status": {"$ne": "processing"},
                },
                {"$set": {"stage": "parked", "awaits": key_hash}},
            )
            for key_hash, names in self._parked.items()
            if names
        ]
        if self._moved:
            back = {"$set": {"stage": "ready", "awaits": NEVER}}
            changes.append(UpdateMany({"_id": {"$in": self._moved}, "stage": "parked"}, back))
        return changes

    def steps_back(self) -> list[Change]:
        """Return the changes to heads that wait behind a lower one from now on."""
        return [
            UpdateOne(
                {"_id": name, "stage": "waiting"},
                {"$set": {"stage": "parked", "awaits": key_hash}},
            )
            for name, key_hash in self._behind.items()
        ]

    def block_changes(self) -> list[Change]:
        """Return the changes to blocks."""
        changes: list[Change] = [
            UpdateOne(
                {"_id": key_id(self._stream, key_hash)},
                [{"$set": self._fields(self._there[key_hash])}],
                upsert=True,
            )
            for key_hash in self._changed
        ]
        if self._gone:
            ids = [key_id(self._stream, key_hash) for key_hash in self._gone]
            changes.append(DeleteMany({"_id": {"$in": ids}}))
        if self._strays:
            changes.append(DeleteMany({"_id": {"$in": self._strays}}))
        return changes

    def _fields(self, block: Block) -> Document:
        place = Place.of(block.barrier)
        fixed = {**block.facts, "head": block.head, "ct": place.ct, "n": place.n}
        values: Document = {name: {"$literal": value} for name, value in fixed.items()}
        values["since"] = {"$ifNull": ["$since", "$$NOW"]}
        return values


async def load_blocks(
    db: Connection, session: Session, stream: str, keys: Iterable[bytes]
) -> Blocks:
    """Read the blocks of keys with their heads and first followers, in one round trip."""
    blocks = Blocks(stream)
    ids = [key_id(stream, key) for key in dict.fromkeys(keys)]
    cursor = await db.block.aggregate(
        [{"$match": {"_id": {"$in": ids}}}, *_lookups(db)], session=session
    )
    for found in await cursor.to_list():
        blocks.add(block_of(found))
    return blocks


def _lookups(db: Connection) -> list[Document]:
    """Return the stages that add its head and its first followers to a block."""
    head = {
        "from": db.outbox.name,
        "localField": "head",
        "foreignField": "_id",
        "pipeline": [{"$project": {"_id": 0, "stage": 1, "ct": 1, "n": 1}}],
        "as": "heads",
    }
    followers = {
        "from": db.outbox.name,
        "let": {"stream": "$stream", "lane": "$lane", "key_hash": "$key_hash"},
        "pipeline": [
            {
                "$match": {
                    "stage": "parked",
                    "$expr": {
                        "$and": [
                            {"$eq": ["$stream", "$$stream"]},
                            {"$eq": ["$lane", "$$lane"]},
                            {"$eq": ["$awaits", "$$key_hash"]},
                        ]
                    },
                }
            },
            {"$sort": {"ct": 1, "n": 1}},
            {"$limit": ADVANCE_STEP + 1},
            {"$project": {"ct": 1, "n": 1}},
        ],
        "as": "parked",
    }
    return [{"$lookup": head}, {"$lookup": followers}]


def block_of(found: Document) -> Block:
    """Return a block from the result of `_lookups`."""
    barrier = seq_of(found)
    heads = found.get("heads", ())
    live = any(head.get("stage") in LIVE and seq_of(head) == barrier for head in heads)
    parked = [(seq_of(one), one["_id"]) for one in found.get("parked", ())]
    return Block(found["key_hash"], barrier, found.get("head", ""), live, parked)


async def lanes_with_blocks(db: Connection, stream: str, lanes: Collection[int]) -> list[list[int]]:
    """Return the lanes that have blocks, in groups with a bounded number of them."""
    with translated(harmless=True):
        cursor = await db.block.aggregate(
            [
                {"$match": {"stream": stream, "lane": {"$in": sorted(lanes)}}},
                {"$group": {"_id": "$lane", "number": {"$sum": 1}}},
                {"$sort": {"_id": 1}},
            ]
        )
        found = await cursor.to_list()
    groups: list[list[int]] = []
    room = 0
    for lane in found:
        if not groups or lane["number"] > room:
            groups.append([])
            room = HEADS_STEP
        groups[-1].append(int(lane["_id"]))
        room -= lane["number"]
    return groups


async def load_broken(
    db: Connection, session: Session, stream: str, lanes: Collection[int], limit: int
) -> tuple[Blocks, list[bytes], int]:
    """Read the blocks of these lanes whose head has finished, is gone or parked (B4).

    Returns them, their keys, and the number of invalid documents, which are removed, too.
    """
    blocks = Blocks(stream)
    head, followers = _lookups(db)
    same = {
        "$and": [
            {"$in": ["$$head.stage", list(LIVE)]},
            {"$eq": ["$$head.ct", "$ct"]},
            {"$eq": ["$$head.n", "$n"]},
        ]
    }
    own = {"stream": "$stream", "key_hash": "$key_hash"}
    alive = {"$filter": {"input": "$heads", "as": "head", "cond": same}}
    cursor = await db.block.aggregate(
        [
            {"$match": {"stream": stream, "lane": {"$in": sorted(lanes)}}},
            head,
            {"$match": {"$expr": {"$or": [{"$eq": [alive, []]}, {"$ne": ["$_id", own]}]}}},
            {"$limit": limit},
            followers,
        ],
        session=session,
    )
    keys: list[bytes] = []
    found = await cursor.to_list()
    for one in found:
        if isinstance(key := one.get("key_hash"), bytes) and one["_id"] == key_id(stream, key):
            blocks.add(block_of(one))
            keys.append(key)
        else:
            blocks.remove_stray(one["_id"])
    return blocks, keys, len(found) - len(keys)


async def write(
    db: Connection, session: Session, blocks: Blocks, changes: Sequence[Change] = ()
) -> int:
    """Write changes of events and blocks; returns how many events matched.

    Without transactions a block is written before its head fails, and removed after its followers
    have come back: a later repair completes what is left undone (B4).
    """
    changes = [*changes, *blocks.event_changes()]
    changes.sort(key=lambda change: isinstance(change, DeleteMany))  # one command for each kind
    of_blocks = blocks.block_changes()
    met = 0
    if session is None:
        before = [change for change in of_blocks if isinstance(change, UpdateOne)]
        of_blocks = [change for change in of_blocks if not isinstance(change, UpdateOne)]
        if before:
            await db.block.bulk_write(before)
    if changes:
        result = await db.outbox.bulk_write(changes, session=session)
        met = result.matched_count + result.deleted_count
    if steps_back := blocks.steps_back():
        await db.outbox.bulk_write(steps_back, session=session)
    if of_blocks:
        await db.block.bulk_write(of_blocks, session=session)
    return met


async def repair_blocks(
    db: Connection, stream: str, owner: str, leases: Mapping[int, int], limit: int
) -> int:
    """Repair blocks from the stored state, some lanes at a time; a single query if there are none.

    Each step reads a bounded number of heads: with 150,000 blocks one query for all of them would
    take longer than a lease.
    """
    repaired = 0
    for lanes in await lanes_with_blocks(db, stream, leases):
        async with db.snapshot() as session:
            _, broken, strays = await load_broken(db, session, stream, lanes, 1)
        if broken or strays:
            held = {lane: leases[lane] for lane in lanes}
            repaired += await _repair_blocks(db, stream, owner, held, limit - repaired)
        if repaired >= limit:
            break
    return repaired


async def _repair_blocks(
    db: Connection, stream: str, owner: str, leases: Mapping[int, int], limit: int
) -> int:
    async def work(session: Session) -> int:
        lanes = await fence(db, session, stream, owner, leases)
        if not lanes:
            return 0
        blocks, keys, strays = await load_broken(db, session, stream, lanes, limit)
        advanced = sum(blocks.advance(key) for key in keys)
        await write(db, session, blocks)
        return advanced + strays

    return await db.transact(work)
