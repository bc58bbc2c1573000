"""What RabbitMQ says about a queue when a consumer comes, without a RabbitMQ."""

from __future__ import annotations

import pytest
from aiormq.exceptions import ChannelNotFoundEntity

from postroom.consumers.rabbitmq import RabbitSource
from postroom.errors import ConfigError

URL = "amqp://guest@localhost?queue=inbox"


class Link:
    is_broken = False

    def __init__(self):
        self.is_closed = False

    async def close(self):
        self.is_closed = True


class Session:
    async def take(self):
        return ["a message"]

    async def end(self, *, flush):
        pass


def refusing(monkeypatch, *refusals):
    """Let RabbitMQ refuse so, one try after the other, and then no more; returns the links."""
    left, links = list(refusals), []

    async def connect(*args):
        links.append(Link())
        return links[-1]

    async def consume(self, link):
        if left:
            raise ChannelNotFoundEntity(left.pop(0))
        return Session()

    monkeypatch.setattr("postroom.consumers.rabbitmq.Link.connect", connect)
    monkeypatch.setattr(RabbitSource, "_consume", consume)
    monkeypatch.setattr("postroom.consumers.rabbitmq._FIRST_PAUSE", 0.0)
    return links


@pytest.mark.req("S1.7", "S5.3")
@pytest.mark.parametrize(
    "said",
    [
        "NOT_FOUND - queue 'inbox' in vhost '/' has crashed and failed to restart",
        "NOT_FOUND - home node 'a@b' of durable queue 'inbox' in vhost '/' is down or inaccessible",
        "NOT_FOUND - queue 'inbox' in vhost '/' process is stopped by supervisor",
    ],
)
async def test_a_queue_that_is_not_back_yet_is_waited_for(monkeypatch, said):
    links = refusing(monkeypatch, said, said, said)
    source = RabbitSource(URL)
    await source.open()
    assert await source.receive() == ["a message"]
    assert [link.is_closed for link in links] == [True, True, True, False]
    await source.close()
    assert all(link.is_closed for link in links)


async def test_a_queue_that_is_not_there_is_told_at_once(monkeypatch):
    refusing(monkeypatch, "NOT_FOUND - no queue 'inbox' in vhost '/'")
    with pytest.raises(ConfigError, match="the queue 'inbox' cannot be consumed.*no queue"):
        await RabbitSource(URL).open()
