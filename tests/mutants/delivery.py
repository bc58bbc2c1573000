"""Bugs in waiting for events, and in what is stored of errors."""

from tests.mutants.mutant import Mutant

DELIVERY = "tests/unit/test_delivery.py::"
HISTORY = "tests/contract/test_store_memory.py::TestMemoryStore::"


def _unknown_is_done():
    from postroom.delivery import Watch

    look = Watch.look

    async def trusting(self, store, *, committed):
        await look(self, store, committed=True)

    Watch.look = trusting


def _gone_is_unknown():
    """An event counts as seen only if this very look has found it."""
    from postroom.delivery import Watch

    look = Watch.look

    async def forgetful(self, store, *, committed):
        self.open = dict.fromkeys(self.open, "")
        await look(self, store, committed=committed)

    Watch.look = forgetful


def _dead_is_done():
    from postroom import delivery

    delivery._ENDED = ()


def _no_pauses():
    from postroom.delivery import Watch

    async def never(self, seconds):
        import asyncio

        await asyncio.sleep(0)

    Watch.pause = never


def _errors_unmasked():
    from postroom import settlement

    settlement.stored_error = settlement.short_error


DELIVERY_MUTANTS = {
    "wait-unknown-is-done": Mutant(
        "G1", "an event of an uncommitted transaction counts as done", _unknown_is_done,
        tests=(f"{DELIVERY}test_an_uncommitted_event_is_an_error_that_says_so",),
    ),
    "wait-gone-is-unknown": Mutant(
        "D6", "an event that was deleted when it was done is reported as unknown",
        _gone_is_unknown,
        tests=(f"{DELIVERY}test_an_event_that_was_seen_and_is_gone_is_done",),
    ),
    "wait-dead-goes-on": Mutant(
        "G7", "a wait does not notice that an event is dead", _dead_is_done,
        tests=(f"{DELIVERY}test_events_that_end_otherwise_are_named",),
    ),
    "wait-busy": Mutant(
        "P1", "a wait asks the store without a pause", _no_pauses,
        tests=(f"{DELIVERY}test_the_pauses_between_looks_grow",),
    ),
    "errors-unmasked": Mutant(
        "G7", "a password in an error is stored with the event", _errors_unmasked,
        tests=(f"{HISTORY}test_a_hostile_error_costs_nothing_else",),
    ),
}  # fmt: skip
