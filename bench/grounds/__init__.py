"""Where a benchmark runs: a database that is filled again for every round, and its bare loop."""

from bench.grounds.mongo import MongoGround
from bench.grounds.mysql import MysqlGround
from bench.grounds.postgres import PostgresGround
from bench.grounds.sqlite import SqliteGround

GROUNDS = {
    "sqlite": SqliteGround,
    "postgresql": PostgresGround,
    "postgres": PostgresGround,
    "mysql": MysqlGround,
    "mariadb": MysqlGround,
    "mongodb": MongoGround,
}


def open_ground(target, folder=None):
    """Return the ground for a URL, or for a server's name: then one is started for this run."""
    if target == "sqlite":
        return SqliteGround(folder)
    target = {"mongodb": "mongo", "postgresql": "postgres", "mysql": "mariadb"}.get(target, target)
    if ":" not in target:
        from tests.servers.catalog import SERVERS

        if target not in SERVERS:
            raise SystemExit(f"no server {target!r}; sqlite or one of: {', '.join(SERVERS)}")
        server = SERVERS[target].make()
        server.start()
        ground = open_ground(server.url)
        ground.server = server
        return ground
    scheme = target.partition(":")[0].partition("+")[0]
    if scheme not in GROUNDS:
        raise SystemExit(f"no benchmark for {scheme!r}; there are: {', '.join(GROUNDS)}")
    return GROUNDS[scheme](target)
