"""One call of `publish`: keys in parallel, one message of each key in flight (Q3).

A nack of a message does not stop the next one, so the next message of a key is sent when the one
before it is confirmed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii as _quoted

from postroom.broker import UNSENT, Outcome, Reporter, Verdict
from postroom.brokers.rabbitmq.channels import Channel
from postroom.brokers.rabbitmq.frames import UnsendableError
from postroom.brokers.rabbitmq.message import Message
from postroom.model import receipts
from postroom.record import Record, short_error

Compose = Callable[[Record], Message | Outcome]


class PublishCall:
    """Sends a batch on a channel and reports the outcomes. It is the channel's listener."""

    def __init__(
        self,
        batch: Sequence[Record],
        reporter: Reporter,
        compose: Compose,
        *,
        confirm_seconds: float,
        blocked: Callable[[], bool],
    ) -> None:
        self._reporter = reporter
        self._compose = compose
        self._confirm_seconds = confirm_seconds
        self._blocked = blocked
        self._runs: dict[bytes, deque[Record]] = {}
        for record in batch:
            self._runs.setdefault(record.key_hash, deque()).append(record)
        self._turns = list(self._runs.values())  # runs whose next record may be sent
        self._in_flight: dict[int, tuple[Message, int, float]] = {}  # in the order written
        self._written = 0
        self._confirmed: list[Message] = []
        self._last_confirmed = 0
        self._nacked: list[tuple[Message, int]] = []
        self._answered = asyncio.Event()
        self._sending = True
        self.late = False
        self.error: BaseException | None = None
        """Why the channel was closed, if it was."""

    @property
    def is_clean(self) -> bool:
        """Whether the channel may be used again: no message on it waits for an answer (Q2)."""
        return self.error is None and not self.late and not self._in_flight

    async def run(self, channel: Channel) -> None:
        """Send until everything is answered, timed out, or lost. When cancelled, it reports nothing
        more.
        """
        loop = asyncio.get_running_loop()
        no_more = loop.time() + self._confirm_seconds / 2
        channel.listen(self)
        try:
            while True:
                if self._turns and not await self._send(channel, loop):
                    break
                if not self._in_flight:
                    break
                await self._listen(loop)
                # a long run of one key: the rest comes with the next call
                if loop.time() > no_more:
                    self._sending = False
        finally:
            channel.listen(None)
        self._end()

    # -- the channel's listener ---------------------------------------------------------------
    def confirmed(self, message: Message) -> None:
        found = self._in_flight.pop(message.record.seq, None)
        if found is not None:
            self._confirmed.append(message)
            self._last_confirmed = max(self._last_confirmed, found[1])
            self._answered.set()

    def returned(self, message: Message, reply: str) -> None:
        self._give_up(
            message,
            Outcome(
                Verdict.MISCONFIGURED,
                f"unroutable ({reply}): no queue is bound to {shown(message.exchange)} for the "
                f"routing key {message.routing_key!r}. Bind one; the event and its key wait "
                "until then",
            ),
        )

    def refused(self, message: Message) -> None:
        found = self._in_flight.pop(message.record.seq, None)
        if found is not None:
            self._nacked.append(found[:2])
            self._answered.set()

    def closed(self, error: BaseException) -> None:
        self.error = error
        self._sending = False
        self._answered.set()

    # -- inside -------------------------------------------------------------------------------
    async def _send(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> bool:
        """Send the next record of each ready run; False if it cannot be written."""
        packed: list[tuple[Message, object]] = []
        turns, self._turns = self._turns, []
        now = loop.time()
        for run in turns:
            if not run or not self._sending:
                continue
            try:
                message = self._compose(run[0])
                if isinstance(message, Outcome):
                    self._stop(run, message)
                    continue
                packed.append((message, channel.pack(message)))
            except UnsendableError as error:
                self._stop(run, Outcome(Verdict.REJECTED, str(error), local=True))
                continue
            # a row from a foreign writer, such as text with lone surrogates
            except Exception as error:
                said = f"it cannot be encoded as an AMQP message: {short_error(error)}"
                self._stop(run, Outcome(Verdict.REJECTED, said, local=True))
                continue
            self._written += 1
            self._in_flight[message.record.seq] = (message, self._written, now)
        if packed:
            try:
                async with asyncio.timeout(self._confirm_seconds):
                    await channel.post(packed)
            except TimeoutError:
                self._give_up_late(now + self._confirm_seconds)
                return False
        return True

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for answers and pass them on; give up messages that have timed out."""
        _, _, since = next(iter(self._in_flight.values()))
        try:
            async with asyncio.timeout_at(since + self._confirm_seconds):
                await self._answered.wait()
        except TimeoutError:
            self._give_up_late(loop.time())
        self._answered.clear()
        if self._confirmed:
            messages, self._confirmed = self._confirmed, []
            confirmed = [message.record for message in messages]
            wanted = self._reporter.keeps_receipts
            self._reporter.confirm(confirmed, list(map(receipt_of, messages)) if wanted else ())
            for record in confirmed:
                run = self._runs[record.key_hash]
                run.popleft()
                if run:
                    self._turns.append(run)
        if self.error is not None:
            lost = Outcome(Verdict.UNKNOWN, f"no confirm: {short_error(self.error)}")
            for message, _, _ in list(self._in_flight.values()):
                self._give_up(message, lost)

    def _give_up_late(self, now: float) -> None:
        """Give up messages that have timed out, and send no others."""
        self.late = True
        self._sending = False
        within = f"no confirm within {self._confirm_seconds:g} s"
        outcome = (
            Outcome(Verdict.OUTAGE, f"{within}: {BLOCKED}")
            # not the event's fault; if RabbitMQ still accepts it later, it is a repeat
            if self._blocked()
            else Outcome(Verdict.UNKNOWN, within)
        )
        for message, _, since in list(self._in_flight.values()):
            if since + self._confirm_seconds <= now:
                self._give_up(message, outcome)

    def _give_up(self, message: Message, outcome: Outcome) -> None:
        if self._in_flight.pop(message.record.seq, None) is not None:
            self._stop(self._runs[message.record.key_hash], outcome)
            self._answered.set()

    def _stop(self, run: deque[Record], outcome: Outcome) -> None:
        """The head of a run was not sent: nothing behind it is."""
        self._reporter.report(run.popleft(), outcome)
        while run:
            self._reporter.report(run.popleft(), UNSENT)

    def _end(self) -> None:
        """Report nacks and unsent records."""
        flowed_on = self._nacked and self._last_confirmed > min(n for _, n in self._nacked)
        for message, _ in self._nacked:
            self._stop(
                self._runs[message.record.key_hash], nack(message, flowed_on=bool(flowed_on))
            )
        for run in self._runs.values():
            while run:
                self._reporter.report(run.popleft(), UNSENT)


def receipt_of(message: Message) -> str:
    """Return where RabbitMQ has accepted a message: exchange and routing key."""
    exchange, key = _quoted(message.exchange), _quoted(message.routing_key)
    text = f'{{"to":"rabbitmq","exchange":{exchange},"routing_key":{key}}}'
    if len(text) <= receipts.MAX_PLACE_BYTES:
        return text
    return receipts.make("rabbitmq", exchange=message.exchange, routing_key=message.routing_key)


BLOCKED = "RabbitMQ has blocked this connection: it is low on memory or disk space"


def nack(message: Message, *, flowed_on: bool) -> Outcome:
    """Decide about a nack: it is never the event's fault, so no attempt is spent.

    If messages written after it were accepted, only the queues of its routing key are full or
    unavailable: its key waits, others go on. If none was, nothing is accepted any more, and it is
    an outage.
    """
    error = (
        f"refused (nack): a queue behind {shown(message.exchange)} for the routing key "
        f"{message.routing_key!r} is full or unavailable"
    )
    return Outcome(Verdict.MISCONFIGURED if flowed_on else Verdict.OUTAGE, error)


def shown(exchange: str) -> str:
    """Return an exchange's name for display."""
    return f"the exchange {exchange!r}" if exchange else "the default exchange"
