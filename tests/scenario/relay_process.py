"""A relay in a process of its own, whose destination is a file: `python -m tests.scenario.relay_process`.

Each event that arrives is one line in the tap, appended in one write: `pid key number id`. The tap
is independent of postroom's tables, and it outlives a SIGKILL. What happens is told on stdout.
"""

import argparse
import asyncio
import os
from pathlib import Path

from postroom.broker import Broker, BrokerCapabilities
from postroom.engine.relay.relay import Relay
from postroom.observer import LanesChanged


class TapBroker(Broker):
    """Appends to the tap; `gate` is a file without which nothing is confirmed."""

    capabilities = BrokerCapabilities()

    def __init__(self, tap, gate):
        self._tap = os.open(tap, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._gate = gate

    async def open(self):
        pass

    async def close(self):
        pass

    async def health(self):
        pass

    async def publish(self, batch, reporter):
        for record in batch:
            line = f"{os.getpid()} {record.key} {record.data} {record.id}\n"
            os.write(self._tap, line.encode())
            if self._gate is not None and not self._gate.exists():
                print("waiting", flush=True)
                while not self._gate.exists():
                    await asyncio.sleep(0.01)
            reporter.confirm([record])
            await asyncio.sleep(0)

    async def publish_alone(self, record, reporter):
        await self.publish([record], reporter)


class Teller:
    def observe(self, fact):
        if isinstance(fact, LanesChanged):
            print(fact.change, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("tap", type=Path)
    parser.add_argument("--gate", type=Path)
    args = parser.parse_args()
    relay = Relay(
        args.store,
        TapBroker(args.tap, args.gate),
        observers=[Teller()],
        lease_seconds=1.5,
        poll_seconds=0.05,
        batch_size=20,
        max_batch_size=50,
        stop_seconds=60.0,
    )
    asyncio.run(relay.run())


if __name__ == "__main__":
    main()
