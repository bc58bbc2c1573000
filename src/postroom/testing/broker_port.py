"""The contract of the parts of the Broker port that a broker may inherit."""

from __future__ import annotations

from typing import ClassVar

import pytest

from postroom.broker import Broker, Verdict
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
