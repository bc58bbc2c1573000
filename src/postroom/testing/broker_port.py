"""The contract of the parts of the Broker port that a broker may inherit."""

from __future__ import annotations

from typing import ClassVar

import pytest

from postroom.broker import Broker, Verdict
from postroom.model import receipts
from postroom.model.diagnostics import Finding
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import RecordingReporter, make_record


class BrokerPortContract:
    """The methods that the relay and the doctor call besides publishing."""

    topic: ClassVar[str]

    async def test_a_broker_without_an_inbox_is_bound_as_it_is(self, broker: Broker) -> None:
        if not broker.capabilities.keeps_inbox:
            assert broker.bind(MemoryStore(), 15.0, stream="main") is broker
            assert await broker.forget_accepted(0.0) == 0

    @pytest.mark.req("S4.4")
    async def test_a_check_returns_findings_and_sends_nothing(self, broker: Broker) -> None:
        found = await broker.check([self.topic])
        assert all(isinstance(one, Finding) and one.what and one.fix for one in found)
        reporter, record = RecordingReporter(), make_record(1, topic=self.topic)
        await broker.publish([record], reporter)
        assert reporter.verdict(record) is Verdict.CONFIRMED

    @pytest.mark.req("S1.9")
    async def test_a_receipt_fits_into_its_column_and_is_made_only_if_it_is_kept(
        self, broker: Broker
    ) -> None:
        """A broker may leave it out; then `postroom show` prints only the name of the relay."""
        kept, unkept = RecordingReporter(), RecordingReporter()
        kept.keeps_receipts = True
        one, two, alone = (make_record(n, topic=self.topic, key=f"key-{n}") for n in (1, 2, 3))
        await broker.publish([one, two], kept)
        await broker.publish_alone(alone, kept)
        told = {record.id: kept.outcome(record).receipt for record in (one, two, alone)}
        stamped = receipts.stamp("relay", {name: text for name, text in told.items() if text}, told)
        for name, text in told.items():
            assert not text or receipts.read(text)["to"]
            assert receipts.read(stamped[name]) == {"by": "relay", **receipts.read(text)}
        again = make_record(4, topic=self.topic, key="key-4")
        await broker.publish([again], unkept)
        assert unkept.verdict(again) is Verdict.CONFIRMED
        assert unkept.outcome(again).receipt == ""
