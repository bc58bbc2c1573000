"""Bugs in the life cycle that a relay, a consumer and a bus share."""

from tests.mutants.mutant import Mutant

TESTS = "tests/unit/test_lifecycle.py::"


def _kill_waits_for_a_start():
    from postroom.engine.lifecycle import Lifecycle

    async def kill(self):
        life = self._killed
        life.set()
        await self._to_the_end(self._stop(life))

    Lifecycle.kill = kill


def _kill_waits_for_a_stop():
    import asyncio
    import contextlib

    from postroom.engine.lifecycle import Lifecycle

    async def patiently(self, waiting, seconds=None):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiting, seconds)

    Lifecycle._unless_killed = patiently


def _cancelled_receive_unnoticed():
    from postroom.engine import service

    crash_of = service.crash_of
    service.crash_of = lambda task: None if task.cancelled() else crash_of(task)


LIFECYCLE_MUTANTS = {
    "kill-waits-for-a-start": Mutant(
        "L4", "a kill waits for a start in flight, which may hang", _kill_waits_for_a_start,
        tests=(f"{TESTS}test_a_kill_ends_a_start_that_hangs",),
    ),
    "kill-waits-for-a-stop": Mutant(
        "L4", "a kill waits for a graceful stop in flight", _kill_waits_for_a_stop,
        tests=(f"{TESTS}test_a_kill_shortens_a_stop",),
    ),
    "cancelled-receive-missed": Mutant(
        "G2", "a consumer whose driver cancels its receive looks healthy and receives nothing",
        _cancelled_receive_unnoticed,
        tests=(f"{TESTS}test_a_receive_that_a_cancelled_call_ends_is_a_crash",),
    ),
}  # fmt: skip
