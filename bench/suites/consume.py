"""From a broker to effects in PostgreSQL, each once, beside loops without an inbox."""

import asyncio
from argparse import Namespace
from functools import partial

from bench import consume
from bench.result import beside, versions
from bench.rounds import say

WORKERS = 10


def measure(broker, yard):
    url = yard.server("postgres18").url
    consume.prepare(url)
    ground = consume.GROUNDS[broker](yard.server(broker).url)
    messages = yard.size(3_000, 500)
    once = Namespace(messages=messages, workers=WORKERS, rounds=1, batch=50)
    figures = {}
    for number in range(yard.rounds):
        for name, rate in asyncio.run(consume.measure(ground, url, once)).items():
            figures.setdefault(name, []).append(rate)
        say(f"round {number + 1} of {yard.rounds}")
    ours = [name for name in figures if name.startswith("consumer")]
    bare = [name for name in figures if not name.startswith("consumer")]
    return [
        beside(
            figures, name, other, suite="consume", part=broker, unit="/s", events=messages,
            batch=1, quick=yard.quick, versions=versions(store="PostgreSQL 18"),
            note="a bare loop has no inbox: a redelivery doubles its effects",
        )
        for name in ours
        for other in bare
    ]  # fmt: skip


PARTS = {broker: partial(measure, broker) for broker in consume.GROUNDS}
