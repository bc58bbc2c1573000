"""The order service: `POST /orders` writes the order and its event in one transaction."""

# ruff: noqa: ANN202 - an example, not a part of the package

from __future__ import annotations

from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from postroom import Event, Outbox, Relay
from postroom.integrations.asgi import lifespan


class Base(DeclarativeBase):
    """The tables of the order service."""


class Order(Base):
    """An order."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int]


class NewOrder(BaseModel):
    """The body of a request."""

    id: str
    total: int


def create(database: str, broker: str, relay: Relay | None = None) -> FastAPI:
    """Return the web service; the relay that sends its events runs in the same process."""
    engine = create_async_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    outbox = Outbox(default_topic="order.created")
    relay = relay or Relay(database, broker, max_outage_seconds=1)

    @asynccontextmanager
    async def tables(_: FastAPI):
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan(relay, around=tables))

    @app.post("/orders", status_code=201)
    async def place(new: NewOrder) -> NewOrder:
        session: AsyncSession
        async with sessions.begin() as session:
            session.add(Order(id=new.id, total=new.total))
            event = Event("order.created", new, key=new.id, correlation_id=f"order {new.id}")
            await outbox.add(session, event)
        return new

    return app
