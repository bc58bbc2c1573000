"""A relay on a host whose clock is wrong: the database's own decides about leases."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from postroom.settlement import Settlement
from postroom.store import Member
from tests.scenario.every_store import STORES, open_store

HOUR = 3600.0
LEASE = 60.0
pytestmark = pytest.mark.server


@pytest.fixture(params=sorted(set(STORES) - {"sqlite"}))
async def store(request):
    async with open_store(request) as (_, store):
        yield store


@contextmanager
def clock_off_by(seconds):
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + round(seconds * 1e9)
    try:
        yield
    finally:
        time.time, time.time_ns = real, real_ns


@pytest.mark.req("S2.3")
@pytest.mark.promise("G5", "L1")
async def test_who_is_an_hour_ahead_takes_nothing_away(store):
    assert await store.take("main", "anna", [7], LEASE) == {7: 1}
    with clock_off_by(HOUR):
        assert await store.take("main", "bert", [7], LEASE) == {}
        membership = await store.heartbeat("main", Member("bert", healthy=True), LEASE, {})
    assert (membership.leases[7].owner, membership.leases[7].live) == ("anna", True)
    assert {member.owner for member in membership.members} == {"bert"}


@pytest.mark.req("S2.3")
@pytest.mark.promise("G5", "L1", "L2")
@pytest.mark.parametrize("off", [HOUR, -HOUR])
async def test_a_lease_that_he_takes_lasts_as_long_as_any(store, off):
    with clock_off_by(off):
        held = await store.take("main", "bert", [7], LEASE)
        await store.heartbeat("main", Member("bert", healthy=True), LEASE, held)
        fenced = await store.settle(Settlement("main", "bert", LEASE, held))
    assert fenced == {7}
    assert (await store.leases("main")).leases[7].live
    assert await store.take("main", "anna", [7], LEASE) == {}
    with clock_off_by(off):  # not an hour longer, either, which others would have to wait
        await store.take("main", "bert", [8], -1.0)
    assert await store.take("main", "anna", [8], LEASE) == {8: 2}
