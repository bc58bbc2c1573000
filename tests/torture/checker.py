"""The offline checker: the business tables and what arrived, nothing else."""

from collections import Counter


def check(committed, dead, arrivals, *, exactly_once, faults):
    """Return the violations, each as one line."""
    found = []
    seen = Counter(event_id for event_id, _, _ in arrivals)
    lost = set(committed) - set(seen) - set(dead)
    if lost:
        found.append(f"I1 lost: {len(lost)} of {len(committed)}, as {sorted(lost)[:3]}")
    phantoms = set(seen) - set(committed)
    if phantoms:
        found.append(f"I2 phantom: {len(phantoms)} that never committed, as {sorted(phantoms)[:3]}")
    last, first_seen = {}, set()
    for event_id, key, n in arrivals:
        if event_id in first_seen:
            continue
        first_seen.add(event_id)
        if n <= last.get(key, 0):
            found.append(f"I3 order: key {key}: {n} first seen after {last[key]}")
        last[key] = max(n, last.get(key, 0))
    copies = sum(seen.values()) - len(seen)
    if copies and exactly_once:
        found.append(f"I7 effects: {copies} took effect more than once")
    elif copies and not faults:
        found.append(f"I4 copies: {copies} although nothing went wrong")
    if dead:
        found.append(f"I8 buried although nothing was wrong with them: {sorted(dead)[:3]}")
    return found, copies
