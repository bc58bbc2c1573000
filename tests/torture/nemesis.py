"""The nemesis: does what the plan says to relays, servers and wires, and notes each deed."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import suppress

from tests.torture.worlds import open_world

RELAYS_LEAST, RELAYS_MOST = 2, 8
STOP_SECONDS = 90


class Nemesis:
    def __init__(self, history, crew, *, store, broker, store_wire, broker_wire, url, lease):
        self.history = history
        self.crew = crew
        self.servers = {"store": store, "broker": broker}
        self.wires = {"store": store_wire, "broker": broker_wire}
        self.url = url
        self.lease = lease

    def do(self, fault):
        """Harm, and mend what would not mend by itself."""
        self.history.note("fault", number=fault.number, kind=fault.kind, size=fault.size)
        verb, _, whom = fault.kind.partition(" ")
        if fault.kind in _DEEDS:
            _DEEDS[fault.kind](self, fault.size)
        elif whom.partition(" ")[0] in self.wires and verb in ("cut", "swallow", "slow"):
            self._wire(verb, whom, fault.size)
        else:
            self._server(verb, whom, fault.size)
        self.history.note("mended", number=fault.number)
        self.crew.keep(RELAYS_LEAST)

    # -- relays -------------------------------------------------------------------------------
    def kill_relay(self, size):
        relay = self.crew.pick(size)
        relay.process.kill()
        relay.process.wait()
        self.crew.forget(relay)

    def pause_relay(self, size):
        relay = self.crew.pick(size)
        relay.process.send_signal(signal.SIGSTOP)
        time.sleep((0.5 + 2.5 * size) * self.lease)
        relay.process.send_signal(signal.SIGCONT)

    def stop_relay(self, size):
        self._stop(self.crew.pick(size))

    def _stop(self, relay):
        relay.process.terminate()
        self.crew.forget(relay)
        try:
            relay.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.history.note("violation", text=f"I9 {relay.name} does not stop")
            relay.process.kill()

    def scale_relays(self, size):
        wanted = RELAYS_LEAST + round(size * (RELAYS_MOST - RELAYS_LEAST))
        self.crew.keep(wanted)
        while len(self.crew.alive) > wanted:
            self._stop(self.crew.alive[0])

    def wrong_clock(self, size):
        self.crew.start(clock="+1h" if size < 0.5 else "-1h")
        while len(self.crew.alive) > RELAYS_MOST:
            self._stop(self.crew.alive[0])

    # -- servers ------------------------------------------------------------------------------
    def _server(self, verb, whom, size):
        server = self.servers[whom]
        victims = getattr(server, "members", None)
        victim = victims[int(size * 1000) % len(victims)] if victims else server
        if verb == "kill":
            victim.kill()
            time.sleep(size)
            victim.restart()
            if victim is not server:
                server.wait_ready()
        else:
            victim.freeze()
            time.sleep((0.5 + 1.5 * size) * self.lease)
            victim.thaw()

    def end_connections(self, size):
        del size
        with suppress(Exception):
            world = open_world(self.url)
            try:
                world.terminate_others()
            finally:
                world.close()

    def long_transaction(self, size):
        """A snapshot stays open while everything else goes on."""

        def hold():
            with suppress(Exception):
                world = open_world(self.url)
                try:
                    world.hold_back()
                    time.sleep(2 + 8 * size)
                finally:
                    world.close()

        threading.Thread(target=hold, daemon=True).start()

    def memory_alarm(self, size):
        broker = self.servers["broker"]
        broker.ctl("set_vm_memory_high_watermark", "absolute", "1024")
        time.sleep((0.5 + 1.5 * size) * self.lease)
        broker.ctl("set_vm_memory_high_watermark", "0.4")

    def step_down(self, size):
        del size
        from tests.servers.mongo import connect

        with suppress(Exception), connect(self.url) as client:
            client.admin.command("replSetStepDown", 5, force=True)

    # -- wires --------------------------------------------------------------------------------
    def _wire(self, verb, whom, size):
        wire = self.wires[whom.partition(" ")[0]]
        if verb == "cut" and whom.endswith("frame"):
            wire.cut_after(1 + int(size * 50_000), "replies" if size < 0.5 else "requests")
        elif verb == "cut":
            wire.cut()
        elif verb == "swallow":
            wire.swallow("replies" if size < 0.7 else "requests")
            time.sleep((0.5 + 1.5 * size) * self.lease)
            wire.heal()
        else:
            wire.delay(0.005 + 0.1 * size)
            time.sleep(2.0)
            wire.delay(0.0)

    def heal(self):
        """Leave nothing broken."""
        for wire in self.wires.values():
            if wire is not None:
                wire.heal()
        for relay in self.crew.alive:
            relay.process.send_signal(signal.SIGCONT)
        self.history.note("healed")


_DEEDS = {
    "kill relay": Nemesis.kill_relay,
    "pause relay": Nemesis.pause_relay,
    "stop relay": Nemesis.stop_relay,
    "scale relays": Nemesis.scale_relays,
    "relay with a wrong clock": Nemesis.wrong_clock,
    "end connections": Nemesis.end_connections,
    "long transaction": Nemesis.long_transaction,
    "memory alarm": Nemesis.memory_alarm,
    "step down": Nemesis.step_down,
}
