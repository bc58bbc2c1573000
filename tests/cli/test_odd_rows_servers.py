"""F1, X-M4: odd rows in the middle, and every verb goes on with the others, on every server."""

from __future__ import annotations

import json

import psycopg
import pymysql
import pytest
from click.testing import CliRunner
from pymongo import MongoClient

from postroom.cli.app import cli
from postroom.errors import NotFoundError
from postroom.event import Event
from tests.contract.mysql_database import MysqlDatabase

pytestmark = pytest.mark.server

# What stands in a row whose event is pending, dead or done, and words that people are shown.
POSTGRES = {
    "headers = 'no json', size = size + 7": "headers are not a JSON object",
    "created_at = 'infinity', lease_until = '-infinity'": "created_at is after the year 9999",
    "causation_path = '7', type = E'\\e[31m'": "causation_path is not a JSON list",
}
MYSQL = {
    "type = x'61ff62', correlation_id = x'ff'": "type is not UTF-8 text",
    "created_at = '0000-00-00', lease_until = '0000-00-00'": "created_at is NULL",
    "headers = '[]', size = size + 2, lease_owner = x'ff'": "headers are not a JSON object",
    "stream = x'ff'": "stream is not UTF-8 text",
}
MONGO = {
    "topic": "topic is missing",
    "headers": "headers is missing",
    "created_at": "created_at is missing",
    "settled_at": "settled_at is missing",
    "key_hash": "key_hash is missing",
}


def spoil_postgres(url, rows):
    with psycopg.connect(url) as connection:
        for name, flaw in rows:
            connection.execute(f"UPDATE postroom_outbox SET {flaw} WHERE id = %s", [name])


def spoil_mysql(url, rows):
    database = MysqlDatabase(url)
    arguments = database.server | {"database": url.rpartition("/")[2]}
    with pymysql.connect(**arguments, autocommit=True) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            for name, flaw in rows:
                cursor.execute(f"UPDATE postroom_outbox SET {flaw} WHERE id = %s", [name])


def spoil_mongo(url, rows):
    with MongoClient(url) as client:
        outbox = client.get_default_database()["postroom_outbox"]
        for name, field in rows:
            change = {"$unset": {field: 1}}
            outbox.update_one({"_id": name}, change, bypass_document_validation=True)


PLACES = {
    "postgres": (spoil_postgres, POSTGRES),
    "mariadb": (spoil_mysql, MYSQL),
    "mongo": (spoil_mongo, MONGO),
}


def run(place, *arguments):
    result = CliRunner().invoke(cli, [*arguments, "--store", place.url], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def lines(place, *arguments):
    return [json.loads(line) for line in run(place, *arguments, "--json").splitlines()]


@pytest.mark.promise("F1", "G7")
@pytest.mark.parametrize("kind", PLACES)
def test_every_verb_goes_on_beside_odd_rows(kind, request):
    place = request.getfixturevalue(f"{kind}_place")
    spoil, flaws = PLACES[kind]
    place.migrate()
    names = ("first", *(f"odd-{n}" for n in range(len(flaws))), "last")
    for state in ("dead", "done", "pending"):
        ours = [f"{state}/{name}" for name in names]
        events = [Event("t", {"n": 1}, id=name, key=name) for name in ours]
        place.add(*events, strict=state == "pending")
        if state != "pending":
            place.deliver(broken=ours if state == "dead" else ())
    odd = {
        f"{state}/{name}": words
        for state in ("dead", "done", "pending")
        for name, words in zip(names[1:-1], flaws.values(), strict=True)
    }
    spoil(place.url, list(zip(odd, [*flaws] * 3, strict=True)))

    # Looking
    run(place, "status")
    streams = json.loads(run(place, "status", "--json"))["streams"]
    assert sum(stream["counts"]["dead"] for stream in streams) >= len(names) - 1
    listed = {row["id"]: row for row in lines(place, "list", "--limit", "100")}
    assert listed["dead/first"]["flaw"] is listed["pending/last"]["flaw"] is None
    for name, words in odd.items():
        assert words in listed[name]["flaw"]
        assert words in " ".join(run(place, "show", name).split())
        assert json.loads(run(place, "show", name, "--json"))["id"] == name
    for state in ("dead", "done", "pending"):
        run(place, "list", "--state", state)
    run(place, "dead")
    assert sum(group["count"] for group in lines(place, "dead")) == len(names)
    CliRunner().invoke(cli, ["doctor", "--store", place.url], catch_exceptions=False)
    run(place, "audit")

    # Ordering
    dead = [name for name in listed if name.startswith("dead/")]
    assert run(place, "replay", "--all", "--yes").startswith(f"replayed {len(dead)}")
    assert lines(place, "dead") == []
    run(place, "bury", *dead, "--reason", "no use")
    run(place, "replay", "dead/first", "--new-id", "--yes")
    run(place, "skip", "pending/first", "--reason", "not wanted")
    for name in odd:
        if name.startswith("pending/"):
            try:
                run(place, "skip", name, "--reason", "not wanted")
            except NotFoundError as error:  # its marker could not be read either
                assert "cannot skip event" in str(error)
                run(place, "bury", name, "--reason", "cannot be read")
    run(place, "prune", "--older-than", "0s")
    left = {row["id"] for row in lines(place, "list", "--limit", "100")}
    assert not {"done/first", "done/last"} & left
    place.deliver()
    run(place, "status")
