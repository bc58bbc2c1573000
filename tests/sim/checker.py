"""What must be true after a simulated run: the promises, one by one."""


def violations(world):
    found = []
    found += _nothing_lost(world)
    found += _no_phantom(world)
    found += _order(world)
    found += _numbers(world)
    found += _effects(world) if world.handlers else _copies(world)
    found += _graves(world)
    found += _leftovers(world)
    found += _shares(world)
    found += _fence(world)
    found += _attempts(world)
    found += _parts(world)
    found += world.operators.violations()
    return found


def _dead(world):
    return {s.row.id: s for s in world.store.data.rows.values() if s.state == "dead"}


def _nothing_lost(world):
    lost = world.committed - set(world.arrived) - set(_dead(world)) - set(world.operators.expired)
    return [f"G2 lost: {sorted(lost)[:3]} ({len(lost)} in all)"] if lost else []


def _no_phantom(world):
    ghosts = (set(world.arrived) | world.hasty) - world.committed - world.vanished
    found = [f"G1 phantom: {sorted(ghosts)[:3]}"] if ghosts else []
    if world.early and not world.chaos.fired["clock"]:
        found.append(f"delayed events came before they were due: {world.early[:3]}")
    return found


def _order(world):
    """Within a stream, one key's events are first seen in the order they were written (G4).

    Dead letters that are replayed, or that a store which was set back holds as unfinished again, and
    delayed events take another place; of events that the store has lost and whose numbers others
    have, nothing is said. Writers of strict events are coordinated by the counter alone, which each
    topic has for itself.
    """
    last, seen, found = {}, set(), []
    elsewhere = world.replayed | set(world.delayed) | world.vanished | world.died
    for came in world.arrivals:
        if came.key is None or came.id in seen | elsewhere:
            continue
        seen.add(came.id)
        key = (came.stream, came.key, None if came.kseq is None else came.topic)
        if came.seq < last.get(key, (0, ""))[0]:
            found.append(
                f"G4 order: key {key}: seq {came.seq} first seen after {last[key]} at {came.at:.3f}"
            )
        last[key] = max(last.get(key, (0, "")), (came.seq, came.id))
    return found


def _numbers(world):
    """Strict events are first seen as 1, 2, 3 …, whoever wrote, rolled back, skipped or replayed
    (W9, B6). Of one that arrived in doubt and was skipped, the marker is a repeat.
    """
    numbers = {}
    for came in world.arrivals:
        if came.kseq is not None and came.id not in world.vanished:
            numbers.setdefault((came.topic, came.key), {})[came.kseq] = None
    return [
        f"W9 numbers of {key}: {list(found)[:20]}"
        for key, found in numbers.items()
        if list(found) != list(range(1, len(found) + 1))
    ]


def _effects(world):
    """Effects happen once, whatever happens (G6)."""
    twice = [i for i, n in world.arrived.items() if n > 1]
    return [f"G6 effects twice: {twice[:3]} ({len(twice)} in all)"] if twice else []


NO_COPIES = {
    "store_conflict",
    "store_lost",
    "store_limbo",
    "fail",
    "hasty",
    "misconfigured",
    "join",
    "leave",
    "poison",
    "rollback",
    "delay",
    "controls",
    "expiry",
    "limits",
}


def _copies(world):
    """Extra copies come only from lost lanes and from faults that leave doubt: not from failures,
    hand-overs or settles that had to be repeated.
    """
    if world.lanes_lost or not set(world.chaos.fired) <= NO_COPIES:
        return []
    twice = [i for i, n in world.arrived.items() if n > 1 and i not in world.unsure]
    return [f"G3 copies without a fault: {twice[:3]} ({len(twice)} in all)"] if twice else []


DOUBT = {
    "unknown_missing",
    "unknown_arrived",
    "silent",
    "slow_broker",
    "cut",
    "crash",
    "pause",
    "slow_store",
    "stuck_heartbeat",
    "locked_lane",
    "clock",
    "set_back",
}


def _graves(world):
    """Only the guilty are buried, after all their attempts; an outage buries nobody (G7)."""
    found = []
    guilty = world.poison | world.killers | world.breakers | world.buried | world.refused
    excuses = ({"fail"} | DOUBT) & set(world.chaos.rates)
    for event_id, stored in _dead(world).items():
        if event_id not in guilty and not excuses:
            found.append(f"G7 buried without cause: {event_id}: {stored.last_error}")
        if stored.attempts < 5 and event_id not in world.buried | world.refused:
            found.append(f"G7 buried after {stored.attempts} attempts: {stored.last_error}")
        if stored.row.kseq and event_id not in world.buried:
            found.append(f"B6 a strict event was given up: {event_id}: {stored.last_error}")
    alive = (world.poison | world.killers | world.breakers) - set(_dead(world))
    alive -= set(world.operators.expired)
    if alive and not world.unfinished():
        found.append(f"poison was neither delivered nor buried: {alive}")
    return found


def _shares(world):
    """Relays that live side by side share the lanes evenly."""
    return [
        f"lanes of {stream} are not shared: {shares}"
        for stream, shares in world.shares.items()
        if sum(shares) != 64 or max(shares) - min(shares) > 1
    ]


def _leftovers(world):
    found = []
    rest = world.unfinished()
    if rest:
        found.append(f"liveness: {len(rest)} events are left, the first: {rest[0]}")
    if world.store.data.blocks and not rest:
        found.append(f"blocks are left behind: {world.store.data.blocks}")
    return found


def _fence(world):
    return [f"G5 settled without the lane: {world.unfenced[:3]}"] if world.unfenced else []


def _attempts(world):
    """Outages, hand-overs, a store in trouble and a wrong configuration spend no attempts (P2)."""
    if ({"fail", "poison", "killer", "breaker"} | DOUBT) & set(world.chaos.rates):
        return []
    charged = [came.id for came in world.arrivals if came.attempts > world.handlers]
    if charged or (world.failures and "misconfigured" not in world.chaos.rates):
        return [f"P2 attempts were spent although no event failed: {charged[:3]}"]
    return []


def _parts(world):
    """No part of a relay dies, is left behind, or turns in circles."""
    found = list(world.alarms)
    if world.leaks:
        found.append(f"tasks are left behind: {world.leaks}")
    if world.circles > 2:
        found.append(f"a relay has settled the same {world.circles} times")
    return found
