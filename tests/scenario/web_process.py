"""A web service for uvicorn: `python -m uvicorn tests.scenario.web_process:app`.

The first request makes a bug in one of its two relays, and is answered when its body is complete.
"""

from __future__ import annotations

from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from postroom import Relay
from postroom.brokers import MemoryBroker
from postroom.integrations.asgi import lifespan, stop_process
from postroom.stores.memory import MemoryStore


class Faulty(MemoryStore):
    bug = False

    async def stage(self, *given):
        if self.bug:
            raise ZeroDivisionError("a bug")
        return await super().stage(*given)


store = Faulty()
relay = Relay(store, MemoryBroker(), poll_seconds=0.01)
other = Relay(MemoryStore(), MemoryBroker(), poll_seconds=0.01)


@asynccontextmanager
async def around(app):
    yield
    print(f"closed; {relay.error!r}, {other.is_running=}", flush=True)


app = FastAPI(lifespan=lifespan(relay, other, around=around, on_crash=stop_process))


@app.post("/orders")
async def place(request: Request):
    store.bug = True
    return {"bytes": len(await request.body()), "other": other.is_running}
