"""The nemesis: does what the plan says to processes, servers, wires and disks, and notes each action.

Each victim has a queue of its own: what is done to one comes in turn, what is done to different
ones overlaps.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import time
from contextlib import closing, contextmanager, suppress
from itertools import cycle

from postroom.model.controls import STREAM, TOPIC
from postroom.record import LANES
from tests.torture import operators
from tests.torture.doom import DIE, FREEZE
from tests.torture.faults import VICTIMS, victim
from tests.torture.worlds import open_world

RELAYS_LEAST, RELAYS_MOST = 2, 8
CONSUMERS = 2
STOP_SECONDS = 90
DOOM_SECONDS = 3
LAST_WORDS_SECONDS = 3


class MissedError(Exception):
    """A fault did not come off, since its victim was away or not yet back."""


@contextmanager
def missing():
    try:
        yield
    except Exception as error:
        raise MissedError from error


class Nemesis:
    def __init__(self, history, crew, ground, *, lease):
        self.history, self.crew, self.lease = history, crew, lease
        self.url, self.disk = ground.store_url, ground.disk
        self.tap = ground.tap
        self.servers = {"store": ground.store, "broker": ground.broker}
        self.wires = {"store": ground.store_wire, "broker": ground.broker_wire}
        self.relays = RELAYS_LEAST
        self._scales = cycle((1, RELAYS_MOST, RELAYS_LEAST))
        self.done = 0
        self._queues = {name: queue.SimpleQueue() for name in VICTIMS}
        self._threads = [
            threading.Thread(target=self._work, args=(line,), daemon=True)
            for line in self._queues.values()
        ]
        for thread in self._threads:
            thread.start()

    def send(self, fault):
        """Have a fault fired as soon as its victim has recovered from the one before."""
        self._queues[victim(fault.kind)].put(fault)

    def rest(self):
        """Wait until everything that was sent has been done."""
        for line in self._queues.values():
            line.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, line):
        while (fault := line.get()) is not None:
            try:
                self.do(fault)
            except Exception as error:  # a nemesis that cannot harm proves nothing
                self.history.note("violation", text=f"the nemesis failed: {fault}: {error!r}")
            self.done += 1

    def do(self, fault):
        """Harm, and mend what would not mend by itself. Only what came off counts as a fault."""
        self.history.note("fault", number=fault.number, kind=fault.kind, size=fault.size)
        try:
            self._strike(fault)
        except MissedError as error:
            self.history.note("missed", number=fault.number, error=str(error.__cause__)[:200])
        else:
            self.history.note("mended", number=fault.number)
        if victim(fault.kind) == "relays":
            self.crew.keep("relay", self.relays)
        elif victim(fault.kind) == "consumers":
            self.crew.keep("consumer", CONSUMERS)

    def _strike(self, fault):
        verb, _, whom = fault.kind.partition(" ")
        if fault.kind in _ACTIONS:
            _ACTIONS[fault.kind](self, fault.size)
        elif whom in ("relay", "consumer"):
            _PROCESS_ACTIONS[verb](self, whom, fault.size)
        elif verb in ("cut", "swallow", "slow"):
            self._wire(verb, whom, fault.size)
        else:
            self._server(verb, whom, fault.size)

    # -- processes ----------------------------------------------------------------------------
    def kill(self, kind, size):
        self._end(self.crew.pick(kind, size), 0)

    def doom(self, kind, size):
        """Let it die at the worst moment."""
        member = self.crew.pick(kind, size, at_work=True)
        self.crew.forget(member)
        member.process.send_signal(DIE)
        self._end(member, DOOM_SECONDS)

    def _end(self, member, seconds):
        self.crew.forget(member)
        with suppress(subprocess.TimeoutExpired):
            member.process.wait(seconds)
        member.process.kill()
        member.process.wait()

    def pause(self, kind, size):
        member = self.crew.pick(kind, size)
        member.process.send_signal(signal.SIGSTOP)
        time.sleep((0.5 + 2.5 * size) * self.lease)
        member.process.send_signal(signal.SIGCONT)

    def freeze(self, kind, size):
        """Let it sleep at the worst moment, and wake up when its lanes are another's."""
        member = self.crew.pick(kind, size, at_work=True)
        member.process.send_signal(FREEZE)
        time.sleep((1.2 + 1.8 * size) * self.lease)
        member.process.send_signal(signal.SIGCONT)

    def stop(self, kind, size):
        self._stop(self.crew.pick(kind, size))

    def _stop(self, member):
        """Ask it to end; another thread sees to it that it does."""
        self.crew.forget(member)
        member.process.terminate()

        def watch():
            try:
                code = member.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.history.note("violation", text=f"T9 {member.name} does not stop")
                member.process.send_signal(signal.SIGUSR2)  # its log tells where it hangs
                time.sleep(1)
                member.process.kill()
            else:
                if code and code != -signal.SIGTERM:  # a signal before Python was up
                    self.history.note("violation", text=f"{member.name} broke: exit {code}")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        self._threads.append(thread)

    def scale_relays(self, size):
        """One, eight, two of them, and again."""
        del size
        self.relays = next(self._scales)
        self.crew.keep("relay", self.relays)
        for member in self.crew.alive("relay")[: -self.relays]:
            self._stop(member)

    def wrong_clock(self, size):
        self.crew.start("relay", "--hours", "1" if size < 0.5 else "-1")
        for member in self.crew.alive("relay")[:-RELAYS_MOST]:
            self._stop(member)

    # -- servers ------------------------------------------------------------------------------
    def _server(self, verb, whom, size):
        server = self.servers[whom]
        one = server
        if victims := getattr(server, "members", None):
            one = victims[int(size * 1000) % len(victims)]
            if size < 0.7:  # rather the one that everything depends on
                with missing():
                    one = server.leader()
        if verb == "kill":
            one.kill()
            time.sleep(size)
            one.restart()
            if one is not server:
                server.wait_ready()
        else:
            one.freeze()
            time.sleep((0.5 + 1.5 * size) * self.lease)
            one.thaw()

    def end_connections(self, size):
        del size
        with missing(), closing(open_world(self.url)) as world:
            world.terminate_others()

    def kill_backend(self, size):
        del size
        with missing(), closing(open_world(self.url)) as world:
            if not world.kill_backend():
                raise MissedError
        self.servers["store"].wait_ready()

    def lock(self, size, take):
        """Let a transaction stay open that has locked what relays write to, for some leases."""
        with missing():
            world = open_world(self.url)
            take(world)
        time.sleep((0.5 + 1.5 * size) * self.lease)
        with suppress(Exception):  # its connection may be gone by then
            world.close()

    def long_transaction(self, size):
        """A snapshot stays open while everything else goes on."""
        with missing():
            world = open_world(self.url)
            world.hold_back()

        def let_go():
            time.sleep(2 + 8 * size)
            with suppress(Exception):  # its connection may be gone by then
                world.close()

        threading.Thread(target=let_go, daemon=True).start()

    def full_disk(self, size):
        """No room is left; a server that gives up is started again when there is room."""
        self.disk.fill()
        time.sleep(0.5 + 1.5 * size)
        self.disk.free()
        server = self.servers["store"]
        if server is not None:
            deadline = time.monotonic() + LAST_WORDS_SECONDS  # MongoDB answers once more, and dies
            while server.pids and time.monotonic() < deadline:
                time.sleep(0.1)
            with suppress(Exception):
                if server.pids and server.answers():
                    return
            server.restart()

    def memory_alarm(self, size):
        broker = self.servers["broker"]
        broker.ctl("set_vm_memory_high_watermark", "absolute", "1024")
        time.sleep((0.5 + 1.5 * size) * self.lease)
        broker.ctl("set_vm_memory_high_watermark", "0.4")

    def disk_alarm(self, size):
        broker = self.servers["broker"]
        broker.ctl("set_disk_free_limit", "1000GB")
        time.sleep((0.5 + 1.5 * size) * self.lease)
        broker.ctl("set_disk_free_limit", "50MB")

    def unroutable(self, size):
        """The queues hear nothing of what is sent, for a while."""
        self.tap.unbind()
        time.sleep((0.5 + 1.5 * size) * self.lease)
        self.tap.bind()

    def step_down(self, size):
        del size
        from pymongo.errors import AutoReconnect

        from tests.servers.mongo import connect

        with missing(), connect(self.url) as client:
            with suppress(AutoReconnect):  # it hangs up on everybody, on whoever asked, too
                client.admin.command("replSetStepDown", 5, force=True)

    # -- operators ----------------------------------------------------------------------------
    def pause_sending(self, size, kind):
        """Nothing of it is sent while relays know of it; at least one must obey (T13)."""
        began = time.time()
        with missing():
            operators.pause(self.url, kind)
        try:
            if not operators.is_seen(self.crew.folder, kind, began):
                self.history.note("violation", text=f"T13 no relay obeys the pause of the {kind}")
            time.sleep((0.5 + 1.5 * size) * self.lease)
        finally:
            operators.lift(self.url)

    def limit_sending(self, size, kind):
        """Relays go on with fewer events in flight, and not as fast."""
        try:
            with missing():
                operators.limit(self.url, kind, per_second=20 + 80 * size, in_flight=4)
            time.sleep((0.5 + 1.5 * size) * self.lease)
        finally:
            operators.lift(self.url)

    def replay_the_dead(self, size):
        del size
        with missing():
            self.history.note("replaying", operation=operators.replay(self.url))

    def edit_the_dead(self, size):
        del size
        with missing():
            if not operators.edit(self.url, self.history.note):
                raise MissedError

    def retry_now(self, size):
        del size
        with missing():
            operators.retry_now(self.url)

    def cancel_the_delayed(self, size):
        with missing():
            operators.cancel_delayed(self.url, size, self.history.note)

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
        self.crew.keep("relay", RELAYS_LEAST)
        for kind in self.crew.places:
            for member in self.crew.alive(kind):
                member.process.send_signal(signal.SIGCONT)
        self.history.note("healed")


_ACTIONS = {
    "kill relay before its settle": lambda self, size: self.doom("relay", size),
    "kill consumer before its ack": lambda self, size: self.doom("consumer", size),
    "pause relay before its settle": lambda self, size: self.freeze("relay", size),
    "pause consumer before its ack": lambda self, size: self.freeze("consumer", size),
    "scale relays": Nemesis.scale_relays,
    "relay with a wrong clock": Nemesis.wrong_clock,
    "end connections": Nemesis.end_connections,
    "kill backend": Nemesis.kill_backend,
    "locked lane": lambda self, size: self.lock(
        size, lambda world: world.lock_lane(int(size * 1000) % LANES)
    ),
    "locked members": lambda self, size: self.lock(size, lambda world: world.lock_members()),
    "long transaction": Nemesis.long_transaction,
    "full disk": Nemesis.full_disk,
    "memory alarm": Nemesis.memory_alarm,
    "disk alarm": Nemesis.disk_alarm,
    "unroutable": Nemesis.unroutable,
    "step down": Nemesis.step_down,
    "pause the stream": lambda self, size: self.pause_sending(size, STREAM),
    "pause the topic": lambda self, size: self.pause_sending(size, TOPIC),
    "limit the stream": lambda self, size: self.limit_sending(size, STREAM),
    "limit the topic": lambda self, size: self.limit_sending(size, TOPIC),
    "replay the dead": Nemesis.replay_the_dead,
    "edit the dead": Nemesis.edit_the_dead,
    "retry now": Nemesis.retry_now,
    "cancel the delayed": Nemesis.cancel_the_delayed,
}
_PROCESS_ACTIONS = {"kill": Nemesis.kill, "pause": Nemesis.pause, "stop": Nemesis.stop}
