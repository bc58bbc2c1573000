"""Whatever a row holds, it becomes a record or a FlawedRecord that can be handled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.model.unreadable_rows import TYPES, FlawedRecord, to_record
from postroom.record import Record
from postroom.testing.broker_tools import make_record
from tests.property.profile import tries

GOOD = make_record(1, key="k")._asdict()
ODD = st.one_of(
    st.none(),
    st.integers(),
    st.sampled_from([2**63 - 1, -(2**63), 0.5, float("nan"), "\ud800", b"\xff", "[" * 5_000, "{}"]),
    st.text(),
    st.binary(),
    st.floats(),
)


@given(st.dictionaries(st.sampled_from(Record._fields), ODD, max_size=4))
@tries(400)
def test_every_row_can_be_handled(spoiled):
    record = to_record(tuple((GOOD | spoiled).values()))
    assert isinstance(record, FlawedRecord) == (record.flaw is not None)
    for name, kinds in TYPES.items():
        assert type(getattr(record, name)) in kinds
    assert record.occurred_at
    assert record.created_at
    assert dict(record.headers).keys() >= set()
    assert all(len(step) == 2 for step in record.causation_path)
    assert record.size >= 0
    assert record._replace(attempts=3).flaw == record.flaw
    if record.flaw is None:
        assert record == tuple((GOOD | spoiled).values())
    else:
        record.flaw.encode()  # it goes into last_error
