"""Relays in processes of their own that share one outbox, while events pour into it.

They run all the time, as relays do, and each has its share of the lanes before anything is
measured. How many events each has sent stands in a file that is shared with them, so that nobody
has to ask the database; so does how many came in the wrong order.
"""

import argparse
import asyncio
import mmap
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from postroom.brokers.memory import NullBroker
from postroom.engine.relay.relay import Relay
from postroom.record import LANES

LEASE_SECONDS = 3.0
SHARE_SECONDS = 60.0
STUCK_SECONDS = 120.0
POLL_SECONDS = 0.002
_PAIR = struct.Struct("<QQ")  # sent, in the wrong order


class Crew:
    """So many relay processes on the outbox of a ground; `slow` is what a publish takes."""

    def __init__(self, ground, count, batch, slow=0.0):
        self._ground, self._count = ground, count
        self._words = ["--batch", str(batch), "--slow", str(slow)]

    def __enter__(self):
        self._file = tempfile.NamedTemporaryFile(prefix="postroom-crew-")
        self._file.write(bytes(_PAIR.size * self._count))
        self._file.flush()
        self._counts = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        command = [sys.executable, "-m", "bench.crew", self._ground.url, self._file.name]
        self._processes = [
            subprocess.Popen([*command, str(place), *self._words]) for place in range(self._count)
        ]
        try:
            self._wait(self._is_shared_out, SHARE_SECONDS, "the lanes are not shared out")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)
        self._counts.close()
        self._file.close()

    @property
    def pids(self):
        return [process.pid for process in self._processes]

    @property
    def shares(self):
        """How many events each has sent."""
        return [self._pair(place)[0] for place in range(self._count)]

    def wait(self, sent):
        """Wait until they have sent so many, each key in its order."""
        self._wait(lambda: sum(self.shares) >= sent, STUCK_SECONDS, "the relays stand still")
        if disorder := sum(self._pair(place)[1] for place in range(self._count)):
            raise RuntimeError(f"{disorder} events were sent in the wrong order")

    def _pair(self, place):
        return _PAIR.unpack_from(self._counts, place * _PAIR.size)

    def _is_shared_out(self):
        held = self._ground.shares()
        return len(held) == self._count and sum(held) == LANES and max(held) - min(held) <= 1

    def _wait(self, is_done, seconds, problem):
        before, deadline = None, time.monotonic() + seconds
        while not is_done():
            if any(process.poll() is not None for process in self._processes):
                raise RuntimeError("a relay has ended")
            if (now := self.shares) != before:
                before, deadline = now, time.monotonic() + seconds
            if time.monotonic() > deadline:
                raise RuntimeError(f"{problem} for {seconds:g} s")
            time.sleep(POLL_SECONDS)


class CountingBroker(NullBroker):
    """A void that takes a moment for each batch, if told to, and watches the order of keys."""

    def __init__(self, path, place, slow):
        super().__init__()
        self._slow, self._place = slow, place * _PAIR.size
        self._last, self._sent, self._disorder = {}, 0, 0
        with Path(path).open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), 0)

    async def publish(self, batch, reporter):
        if self._slow:
            await asyncio.sleep(self._slow)
        last = self._last
        for record in batch:
            if record.seq <= last.get(record.key_hash, 0):
                self._disorder += 1
            last[record.key_hash] = record.seq
        await super().publish(batch, reporter)
        self._sent += len(batch)
        _PAIR.pack_into(self._counts, self._place, self._sent, self._disorder)


def main():
    """One relay of a crew, until it is told to stop."""
    parser = argparse.ArgumentParser(prog="python -m bench.crew")
    parser.add_argument("store")
    parser.add_argument("counts")
    parser.add_argument("place", type=int)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--slow", type=float, required=True)
    args = parser.parse_args()
    broker = CountingBroker(args.counts, args.place, args.slow)
    relay = Relay(
        args.store, broker, batch_size=args.batch, max_batch_size=args.batch,
        keep_done_seconds=0, lease_seconds=LEASE_SECONDS,
    )  # fmt: skip
    asyncio.run(relay.run())


if __name__ == "__main__":
    main()
