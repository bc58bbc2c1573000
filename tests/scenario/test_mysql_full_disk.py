"""A disk that is full, on a MariaDB of its own: events are kept, and go on when there is room."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.stores.mysql import MysqlStore
from tests.contract.mysql_database import own_database
from tests.scenario.place import QUICK, Notes, first_seen, until
from tests.servers.process import data_root

DISK, FILLER_STEP = "320m", 1_000_000


@pytest.fixture
def small_disk():
    """Not below tmp_path: the server runs as another user, whom pytest may lock out at any time."""
    folder = Path(tempfile.mkdtemp(dir=data_root()))
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    options = f"size={DISK},mode=777"
    subprocess.run([*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    yield folder
    subprocess.run([*as_root, "umount", "-l", folder], check=True)
    folder.rmdir()


def fill(file):
    with file.open("ab") as filler:
        try:
            while True:
                filler.write(bytes(FILLER_STEP))
                filler.flush()
        except OSError:
            return


@pytest.mark.slow
@pytest.mark.req("S1.8")
@pytest.mark.promise("G1", "G2")
async def test_a_full_disk_loses_nothing(small_disk, own_server):
    server, broker, notes = own_server("mariadb", under=small_disk), MemoryBroker(), Notes()
    with own_database(server.url) as database:
        await MysqlStore(database.url).migrate()
        kept = [f"e{n}" for n in range(300)]
        async with database.writing() as connection:
            await Outbox().add_many(
                connection, [Event("t", {"pad": "x" * 500}, id=i, key=f"k{i[-1]}") for i in kept]
            )
        filler = small_disk / "filler"
        fill(filler)
        refused = []  # or unknown, if the reply was lost
        for n in range(200):
            try:
                async with database.writing() as connection:
                    big = Event("t", {"pad": "x" * 400_000}, id=f"big{n}", key="k")
                    await Outbox().add(connection, big)
            except Exception as error:
                # At times MariaDB ends itself when it cannot write.
                assert re.search("full|space|Lost connection|connect to MySQL", str(error)), error
                refused.append(f"big{n}")
                if len(refused) == 3:
                    break
            else:
                kept.append(f"big{n}")
        assert len(refused) == 3
        relay = Relay(database.url, broker, **QUICK, lease_seconds=3.0, observers=[notes])
        running = asyncio.create_task(relay.run())
        await until(lambda: len(first_seen(broker)) > 200 or not server.pids, 60)
        filler.unlink()
        if not server.pids:
            await asyncio.to_thread(server.restart)
        await until(lambda: set(first_seen(broker)) >= set(kept), 60)
        await until(lambda: relay.counts.done >= len(first_seen(broker)), 60)
        await relay.stop()
        await running
        assert set(first_seen(broker)) <= {*kept, *refused}
        for key in {i[-1] for i in kept if i[0] == "e"}:
            mine = [i for i in first_seen(broker) if i[0] == "e" and i[-1] == key]
            assert mine == [i for i in kept if i[0] == "e" and i[-1] == key]
        assert database.run("SELECT COUNT(*) FROM postroom_outbox WHERE state <> 'done'") == [(0,)]
