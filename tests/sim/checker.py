"""What must be true after a simulated run: the promises, one by one."""


def violations(world):
    found = []
    found += _nothing_lost(world)
    found += _no_phantom(world)
    found += _order(world)
    found += _effects(world) if world.handlers else _copies(world)
    found += _graves(world)
    found += _leftovers(world)
    found += _shares(world)
    found += _fence(world)
    found += _attempts(world)
    return found


def _dead(world):
    return {s.row.id: s for s in world.store.tables.rows.values() if s.state == "dead"}


def _nothing_lost(world):
    lost = set(world.committed) - set(world.arrived) - set(_dead(world))
    return [f"G2 lost: {sorted(lost)[:3]} ({len(lost)} in all)"] if lost else []


def _no_phantom(world):
    ghosts = set(world.arrived) - set(world.committed)
    return [f"G1 phantom: {sorted(ghosts)[:3]}"] if ghosts else []


def _order(world):
    last, seen, found = {}, set(), []
    for at, event_id, key, seq in world.arrivals:
        if key is None or event_id in seen or event_id in world.replayed:
            continue
        seen.add(event_id)
        if seq < last.get(key, (0, ""))[0]:
            found.append(f"G4 order: key {key}: seq {seq} first seen after {last[key]} at {at:.3f}")
        last[key] = max(last.get(key, (0, "")), (seq, event_id))
    return found


def _effects(world):
    """Effects happen once, whatever happens (G6)."""
    twice = [i for i, n in world.arrived.items() if n > 1]
    return [f"G6 effects twice: {twice[:3]} ({len(twice)} in all)"] if twice else []


NO_COPIES = {
    "store_conflict",
    "store_lost",
    "store_limbo",
    "fail",
    "join",
    "leave",
    "poison",
    "rollback",
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
    "crash",
    "pause",
    "slow_store",
}


def _graves(world):
    """Only the guilty are buried, after all their attempts; an outage buries nobody (G7)."""
    found = []
    guilty = world.poison | world.killers | world.breakers | world.buried
    excuses = ({"fail"} | DOUBT) & set(world.chaos.rates)
    for event_id, stored in _dead(world).items():
        if event_id not in guilty and not excuses:
            found.append(f"G7 buried without cause: {event_id}: {stored.last_error}")
        if stored.attempts < 5 and event_id not in world.buried:
            found.append(f"G7 buried after {stored.attempts} attempts: {stored.last_error}")
    alive = (world.poison | world.killers | world.breakers) - set(_dead(world))
    if alive and not world.unfinished():
        found.append(f"poison was neither delivered nor buried: {alive}")
    return found


def _shares(world):
    """Relays that live side by side share the lanes evenly."""
    if world.shares and (sum(world.shares) != 64 or max(world.shares) - min(world.shares) > 1):
        return [f"lanes are not shared: {world.shares}"]
    return []


def _leftovers(world):
    found = []
    rest = world.unfinished()
    if rest:
        found.append(f"liveness: {len(rest)} events are left, the first: {rest[0]}")
    if world.store.tables.blocks and not rest:
        found.append(f"blocks are left behind: {world.store.tables.blocks}")
    return found


def _fence(world):
    return [f"G5 settled without the lane: {world.unfenced[:3]}"] if world.unfenced else []


def _attempts(world):
    """Outages, hand-overs and a store in trouble spend no attempts (P2)."""
    charging = {"fail", "poison", "killer", "breaker"} | DOUBT
    if world.failures and not charging & set(world.chaos.rates):
        return [f"P2 attempts were spent {world.failures} times although no event failed"]
    return []
