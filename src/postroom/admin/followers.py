"""A head with the events that wait behind it: the same key, written later, in the same state."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.admin.selection import fetch
from postroom.errors import ConfigError, NotFoundError
from postroom.lookup import Filter
from postroom.record import Record, State
from postroom.store import Store

MAX_TOGETHER = 1_000  # events of one transaction


async def with_followers(store: Store, ids: Sequence[str], states: Sequence[State]) -> list[Record]:
    """Return one event and those of its key after it in these states, in the order of writing.

    Raises ConfigError if they are too many for one transaction.
    """
    if len(ids) != 1:
        raise ConfigError("--with-followers needs one ID: the first event of the key")
    (head,) = await fetch(store, ids, states)
    if head.key is None:
        raise NotFoundError(f"event {head.id!r} has no key: no event waits behind it")
    wanted = Filter(stream=head.stream, key=head.key, after_seq=head.seq, limit=MAX_TOGETHER + 1)
    found = [head]
    for state in states:
        page = await store.find(wanted._replace(state=state))
        found += [record for record in page if record.key_hash == head.key_hash]
    if len(found) > MAX_TOGETHER:
        raise ConfigError(
            f"more than {MAX_TOGETHER:,} events of key {head.key!r} would change, too many for one "
            f"transaction; {_way_out(head, states)}"
        )
    return sorted(found, key=lambda record: record.seq)


def _way_out(head: Record, states: Sequence[State]) -> str:
    where = f"--stream {head.stream} --key {head.key} --after {head.seq - 1}"
    if State.DEAD in states:  # in the order of writing: it can be interrupted at any time
        return f"in steps: postroom replay {where}"
    return (
        f"in steps, while nothing is sent: postroom pause {head.stream}; postroom bury {where} "
        f"--state pending; postroom bury {head.id}; postroom resume {head.stream}"
    )
