from __future__ import annotations

import pytest

from postroom.stores.sqlite import SqliteStore
from tests.dashboard.place import client, dashboard, fill


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shop.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(f"sqlite:///{path}")
    await store.migrate()
    await store.open()
    await fill(store, path)
    yield store
    await store.close()


@pytest.fixture
async def app(store):
    app = dashboard({"shop": store})
    yield app
    await app.close()


@pytest.fixture
def ask(app):
    """Return the JSON of a question of an admin."""

    async def ask(path, token="admin", status=200, **query):
        async with client(app, token) as one:
            answer = await one.get(f"/api/v1/stores/shop/{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


@pytest.fixture
def act(app):
    """Carry out an action through the API; returns the answer."""

    async def act(verb, token="admin", **body):
        async with client(app, token) as one:
            return await one.post(
                f"/api/v1/stores/shop/actions/{verb}",
                json={"reason": "a test", "action_id": f"{verb}-00000001"} | body,
            )

    return act
