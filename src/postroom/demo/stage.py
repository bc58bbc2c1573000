"""The stage: starts the processes, and kills the first relay at the worst moment."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postroom.demo import shop
from postroom.demo.crew import Actor, Crew, DemoError
from postroom.demo.screen import Screen
from postroom.stores.sqlite import SqliteStore

LEASE_SECONDS = 2.0
_START_SECONDS = 20.0
_SHOP_SECONDS = 120.0
_FINISH_SECONDS = 30.0
_QUIET_SECONDS = 0.5
_WIRE_SECONDS = 0.3
_RATE = 110.0  # transactions per second: slow enough to watch
_LONGEST = 20.0  # maximum seconds for the shop


@dataclass(frozen=True)
class Play:
    """The parameters of one demo."""

    folder: Path
    orders: int
    seed: int

    @property
    def events(self) -> int:
        return self.orders * len(shop.STEPS)

    @property
    def unacked(self) -> int:
        """Events that the receiver has at the kill without having acknowledged them."""
        return max(1, min(12, self.orders // 4))

    @property
    def rate(self) -> float:
        return max(_RATE, self.events / (1 - shop.ROLLED_BACK) / _LONGEST)

    @property
    def shop_db(self) -> Path:
        return self.folder / "shop.db"

    @property
    def receiver_db(self) -> Path:
        return self.folder / "receiver.db"


class Stage:
    """Runs one demo and prints its steps."""

    def __init__(self, play: Play, screen: Screen) -> None:
        self._play = play
        self._screen = screen
        self._crew = Crew(play.folder)
        self._shop: Actor | None = None
        self._receiver: Actor | None = None
        self._relay: Actor | None = None

    async def play(self) -> None:
        try:
            await self._begin()
            await self._kill_half_way()
            await self._finish()
        finally:
            await self._crew.end()
            self._screen.clear()

    # -- three acts ---------------------------------------------------------------------------
    async def _begin(self) -> None:
        play = self._play
        for path in (play.shop_db, play.receiver_db):
            await SqliteStore(path).migrate()
        self._receiver = await self._crew.start(
            "receiver", str(play.receiver_db),
            "--hold-after", str(max(1, play.events // 2)), "--hold-limit", str(play.unacked),
        )  # fmt: skip
        await self._must("the receiver did not start", lambda: "port" in self._heard())
        self._say("receiver", f"process {self._receiver.pid}, with its own database")
        self._relay = await self._start_relay("first relay")
        await self._must("the relay did not connect", lambda: bool(self._heard().get("relay")))
        self._say(
            "first relay", f"process {self._relay.pid}, delivers from shop.db to the receiver"
        )
        self._shop = await self._crew.start(
            "shop", str(play.shop_db),
            "--orders", str(play.orders), "--seed", str(play.seed), "--rate", str(play.rate),
        )  # fmt: skip
        self._shop.finishes = True
        self._say(
            "shop", f"process {self._shop.pid}, {play.orders:,} orders of 5 events each, "
            f"seed {play.seed}",
        )  # fmt: skip

    async def _kill_half_way(self) -> None:
        """Kill the relay while it has events in flight that it cannot have settled.

        From half-way on the receiver withholds its acks: for the relay they are still in transit.
        After a few messages it also stops reading: later messages are lost with the connection.
        """
        assert self._relay is not None
        assert self._receiver is not None
        await self._until(lambda: self._unacked() > 0, _SHOP_SECONDS)
        await self._until(lambda: self._unacked() >= self._play.unacked, LEASE_SECONDS)
        await self._until(lambda: False, _WIRE_SECONDS)
        self._relay.kill()
        await self._relay.ended()
        died_at = time.monotonic()
        arrived = self._heard()["arrived"]
        self._say("kill -9", "the first relay is dead: some of its events had arrived, others")
        self._say("", "were in transit and are lost; it had settled none of them")
        self._receiver.say("release")
        self._relay = await self._start_relay("second relay")
        self._say(
            "second relay", f"process {self._relay.pid}, waits for the dead relay's lease to expire"
        )
        # If it never delivers, the checker reports the missing events.
        if await self._until(lambda: self._heard()["arrived"] > arrived, _FINISH_SECONDS):
            self._say("", f"has taken over, {time.monotonic() - died_at:.1f} s after the kill")

    async def _finish(self) -> None:
        assert self._shop is not None
        assert self._receiver is not None
        assert self._relay is not None
        shop_process, receiver = self._shop, self._receiver
        if not await self._until(lambda: shop_process.exit_code is not None, _SHOP_SECONDS):
            raise DemoError(
                f"the shop did not finish within {_SHOP_SECONDS:g} s; is the disk slow?"
            )
        if shop_process.exit_code != 0:
            raise DemoError(f"the shop failed: {shop_process.last_words()}")
        written = shop_process.facts["written"]
        # If some do not arrive in time, the checker reports them.
        await self._until(lambda: self._heard().get("applied", 0) >= written, _FINISH_SECONDS)
        await self._until(lambda: False, _QUIET_SECONDS)  # time for unexpected messages to arrive
        self._relay.terminate()
        if await self._relay.ended() != 0:
            raise DemoError(f"the second relay failed to stop: {self._relay.last_words()}")
        receiver.leaving = True
        receiver.say("close")
        if await receiver.ended() != 0:
            raise DemoError(f"the receiver failed to stop: {receiver.last_words()}")

    # -- small things -------------------------------------------------------------------------
    def _say(self, who: str, what: str) -> None:
        self._screen.news(f"{who:<13} {what}")

    def _unacked(self) -> int:
        return int(self._heard().get("unacked", 0))

    async def _start_relay(self, name: str) -> Actor:
        return await self._crew.start(
            "relay", str(self._play.shop_db),
            "--port", str(self._heard()["port"]),
            "--name", name, "--lease-seconds", str(LEASE_SECONDS), name=name,
        )  # fmt: skip

    def _heard(self) -> dict[str, Any]:
        return self._receiver.facts if self._receiver is not None else {}

    async def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        return await self._crew.until(true, seconds, self._draw)

    async def _must(self, problem: str, true: Callable[[], bool]) -> None:
        if not await self._until(true, _START_SECONDS):
            raise DemoError(problem)

    def _draw(self) -> None:
        told = self._shop.facts if self._shop is not None else {}
        heard = self._heard()
        if not told:
            return
        applied, arrived = heard.get("applied", 0), heard.get("arrived", 0)
        self._screen.progress(
            f"{self._screen.bar(applied / self._play.events)} written {told['written']:,}"
            f"  rolled back {told['rolled_back']:,}  delivered {applied:,}"
            f"  duplicates {arrived - applied:,}"
        )


async def check(play: Play, *, as_json: bool) -> int:
    """Run the checker as a separate process that prints the report; returns its exit code."""
    extra = ["--json"] if as_json else []
    sys.stdout.flush()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "postroom.demo", "checker",
        str(play.shop_db), str(play.receiver_db), *extra,
        stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    code = await process.wait()
    if code == -signal.SIGPIPE:
        raise BrokenPipeError
    return code
