"""MongoDB, with pymongo."""

from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure, PyMongoError

from tests.servers.mongo import states
from tests.servers.process import wait_until

Client = pymongo.MongoClient[dict[str, Any]]


@pytest.mark.asyncio
async def test_transaction_and_change_stream(mongo_url: str) -> None:
    async with pymongo.AsyncMongoClient[dict[str, Any]](mongo_url) as client:
        assert (await client.server_info())["version"] == "6.0.5"
        database = client.get_database("smoke")
        for name in ("orders", "events"):
            await database.drop_collection(name)
            await database.create_collection(name)
        async with await database.events.watch(max_await_time_ms=100) as stream:
            async with client.start_session() as session:
                await session.start_transaction()
                await database.orders.insert_one({"_id": 1}, session=session)
                await database.events.insert_one({"_id": "rolled back"}, session=session)
                await session.abort_transaction()

                await session.start_transaction()
                await database.orders.insert_one({"_id": 2}, session=session)
                await database.events.insert_one({"_id": "committed"}, session=session)
                assert await database.orders.count_documents({}) == 0  # from outside
                await session.commit_transaction()
            assert [row["_id"] async for row in database.orders.find()] == [2]
            change = await stream.next()
            assert change["documentKey"] == {"_id": "committed"}
        await client.drop_database("smoke")


def test_three_members_confirm_a_write(mongo_cluster_url: str) -> None:
    concern = pymongo.WriteConcern(w=3, wtimeout=10_000)
    with Client(mongo_cluster_url) as client:
        smoke = client.get_database("smoke").get_collection("three", write_concern=concern)
        assert smoke.insert_one({}).acknowledged
        client.drop_database("smoke")


def test_writes_resume_after_an_election(own_server: Any) -> None:
    cluster = own_server("mongo_cluster")
    with Client(cluster.url, serverSelectionTimeoutMS=20_000) as client:
        smoke = client.get_database("smoke").get_collection("election")
        smoke.insert_one({"_id": "before"})
        old = client.primary
        client.admin.command("replSetStepDown", 30)
        smoke.insert_one({"_id": "after"})  # retryable writes wait for the next primary
        assert client.primary != old
        assert smoke.count_documents({}) == 2

        [dead] = [one for one in cluster.members if client.primary == ("127.0.0.1", one.port)]
        dead.kill()

        def written() -> bool:
            return bool(smoke.insert_one({}).acknowledged)

        wait_until(written, within=30, what="a write after the primary's death")
        dead.restart()
        wait_until(
            lambda: states(cluster.url) == ["PRIMARY", "SECONDARY", "SECONDARY"],
            within=30,
            what="three members again",
        )


def test_a_standalone_refuses_transactions_and_change_streams(mongo_standalone_url: str) -> None:
    with Client(mongo_standalone_url) as client:
        smoke = client.get_database("smoke").get_collection("standalone")
        smoke.insert_one({})
        with (
            client.start_session() as session,
            pytest.raises(OperationFailure, match="replica set"),
        ):
            with session.start_transaction():
                smoke.insert_one({}, session=session)
        with pytest.raises(OperationFailure, match="replica set"):
            smoke.watch()
        client.drop_database("smoke")


def test_a_restart_after_a_kill_keeps_what_was_committed(own_server: Any) -> None:
    server = own_server("mongo")
    with Client(server.url, serverSelectionTimeoutMS=500) as client:
        client.get_database("smoke").kept.insert_one({"_id": 1})
        server.kill()
        with pytest.raises(PyMongoError):
            client.admin.command("ping")
    server.restart()
    with Client(server.url) as client:
        assert client.get_database("smoke").kept.find_one() == {"_id": 1}
