"""`python -m postroom.demo ROLE`: one process of the demo. The stage starts them."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import click

from postroom.cli.run import log_to_stderr
from postroom.demo import checker, lifeline, receiver, shop
from postroom.demo.wire import WireBroker
from postroom.engine.relay.relay import Relay
from postroom.stores.sqlite import SqliteStore

PATH = click.Path(path_type=Path)


@click.group()
def roles() -> None:
    """One process of the demo."""
    log_to_stderr("info")


@roles.command("shop")
@click.argument("database", type=PATH)
@click.option("--orders", type=int, required=True)
@click.option("--seed", type=int, required=True)
@click.option("--rate", type=float, required=True)
def play_shop(database: Path, orders: int, seed: int, rate: float) -> None:
    lifeline.hold_on()
    shop.run(database, orders, seed, rate)


@roles.command("receiver")
@click.argument("database", type=PATH)
@click.option("--hold-after", type=int, required=True)
@click.option("--hold-limit", type=int, required=True)
def play_receiver(database: Path, hold_after: int, hold_limit: int) -> None:
    async def serve() -> None:
        clerk = receiver.Clerk(database, hold_after, hold_limit)
        loop = asyncio.get_running_loop()
        lifeline.hold_on(lambda command: loop.call_soon_threadsafe(clerk.obey, command))
        await clerk.run()

    asyncio.run(serve())


@roles.command("relay")
@click.argument("database", type=PATH)
@click.option("--port", type=int, required=True)
@click.option("--name", required=True)
@click.option("--lease-seconds", type=float, required=True)
def play_relay(database: Path, port: int, name: str, lease_seconds: float) -> None:
    lifeline.hold_on()

    async def deliver() -> None:
        await Relay(
            SqliteStore(database),
            WireBroker("127.0.0.1", port, name),
            lease_seconds=lease_seconds,
            name=name,
        ).run()

    asyncio.run(deliver())


@roles.command("checker")
@click.argument("shop_database", type=PATH)
@click.argument("receiver_database", type=PATH)
@click.option("--json", "as_json", is_flag=True)
def play_checker(shop_database: Path, receiver_database: Path, as_json: bool) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a closed pipe is not a violation
    report = checker.examine(shop_database, receiver_database)
    checker.print_report(report, as_json=as_json)
    sys.exit(0 if report.is_good else 1)


if __name__ == "__main__":
    roles(prog_name="python -m postroom.demo")
