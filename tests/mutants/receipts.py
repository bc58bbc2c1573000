"""Bugs in the receipts of done events."""

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/test_receipts.py"
MEMORY = "tests/contract/test_store_memory.py"
SQLITE = "tests/contract/test_store_sqlite.py"
POSTGRES = "tests/contract/test_store_postgres.py"
HOLDER = "test_only_the_holder_of_the_lane_writes_one_and_only_once"
OWN = "test_each_done_event_keeps_its_own_receipt"


def _of_another_event():
    from postroom.engine.relay.in_flight import InFlight

    confirm = InFlight.confirm
    InFlight.confirm = lambda self, records, receipts=(): confirm(self, records, receipts[::-1])


def _of_another_row():
    from postroom.stores.postgres import settle

    texts = settle.receipt_texts
    settle.receipt_texts = lambda values: texts(values[::-1])


def _kept_after_a_replay():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    assert "receipt = NULL, " in queries["replay"]
    queries["replay"] = queries["replay"].replace("receipt = NULL, ", "")


def _kept_for_a_lost_lane():
    from postroom.engine.relay.in_flight import InFlight

    forget = InFlight.forget

    def remember(self, lanes):
        places = dict(self._places)
        forget(self, lanes)
        self._places = places

    InFlight.forget = remember


def _unchecked():
    from postroom.model import receipts

    receipts._are_clean = lambda texts: True


def _without_the_fence():
    from postroom.stores.memory.store import MemoryStore

    settle = MemoryStore.settle

    async def hasty(self, settlement):
        for record in settlement.done:
            if (stored := self.data.find(record)) is not None:
                stored.receipt = settlement.receipts.get(record.id)
        return await settle(self, settlement)

    MemoryStore.settle = hasty


RECEIPT_MUTANTS = {
    "receipt-of-another-event": Mutant(
        "G3", "reports that come out of order give events the receipts of others",
        _of_another_event,
        tests=(f"{UNIT}::test_each_done_event_has_its_own_whatever_the_order_of_reports",),
    ),
    "receipt-of-another-row": Mutant(
        "L2", "a settle writes the receipts of a batch in another order than its rows",
        _of_another_row, tests=(f"{POSTGRES}::TestPostgres15Store::{OWN}",),
    ),
    "receipt-kept-after-replay": Mutant(
        "L7", "a replayed event keeps the receipt of its first delivery", _kept_after_a_replay,
        tests=(f"{SQLITE}::TestSqliteStore::test_a_replayed_event_loses_its_receipt",),
    ),
    "receipt-of-a-lost-lane": Mutant(
        "L1", "the receipt of an outcome that no longer counts is kept for the next attempt",
        _kept_for_a_lost_lane, tests=(f"{UNIT}::test_that_of_a_lost_lane_is_forgotten",),
    ),
    "receipt-unchecked": Mutant(
        "F2", "a destination's receipt is stored as it comes", _unchecked,
        tests=(f"{UNIT}::test_one_that_cannot_be_stored_costs_no_other",),
    ),
    "receipt-before-the-fence": Mutant(
        "L2", "a relay that has lost the lane writes its receipt over another's",
        _without_the_fence,
        tests=(f"{MEMORY}::TestMemoryStore::{HOLDER}",),
    ),
}  # fmt: skip
