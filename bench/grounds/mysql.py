"""MySQL and MariaDB: each round copies prepared rows into an empty outbox."""

import asyncio

from bench.grounds.events import BLOCKED, BLOCKED_LANE, PAYLOAD_TEXT, message, rows

COLUMNS = (
    "seq, id, stream, lane, key_hash, type, topic, `key`, aggregate_type, aggregate_id, "
    "payload, content_type, headers, correlation_id, causation_path, "
    "schema_version, kseq, occurred_at, created_at, state, attempts"
)


def connect(url, **options):
    import pymysql

    from postroom.model.url import Url

    parsed = Url.parse(url)
    return pymysql.connect(
        host=parsed.host, port=parsed.port or 3306, user=parsed.user or "root",
        password=parsed.password or "", database=parsed.database, charset="utf8mb4",
        autocommit=True, **options,
    )  # fmt: skip


class MysqlGround:
    name = "bare asyncmy loop"
    server = None

    def __init__(self, url):
        from postroom.stores.mysql import MysqlStore

        self.url = url
        asyncio.run(MysqlStore(url).migrate())
        self._connection = connect(url)
        self.version = self.run("SELECT VERSION()")[0][0]

    def run(self, sql, values=None):
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchall()

    def close(self):
        self._connection.close()
        if self.server:
            self.server.stop()

    def store(self):
        from postroom.stores.mysql import MysqlStore

        return MysqlStore(self.url)

    def prepare(self, name, events, keys, hot=0.0, crowd=None, number=0):
        from postroom.transactions import resolve_sync

        for table in ("outbox", "block"):
            self.run(f"TRUNCATE TABLE postroom_{table}")
        if crowd:
            self._crowd(crowd, number)
        self._connection.begin()
        resolve_sync(self._connection, "postroom_").insert(list(rows(events, keys, hot)))
        self._connection.commit()
        for table in ("outbox", "block"):
            self.run(f"DROP TABLE IF EXISTS bench_{name}_{table}")
            self.run(f"CREATE TABLE bench_{name}_{table} AS SELECT * FROM postroom_{table}")

    def reset(self, name):
        for table in ("outbox", "block"):
            self.run(f"TRUNCATE TABLE postroom_{table}")
            columns = self._columns(table)
            self.run(
                f"INSERT INTO postroom_{table} ({columns}) SELECT {columns} "
                f"FROM bench_{name}_{table}"
            )
        self.run("ANALYZE TABLE postroom_outbox")

    def _columns(self, table):
        """All but those that the server computes."""
        found = self.run(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() "
            f"AND table_name = 'postroom_{table}' AND COALESCE(generation_expression, '') = ''"
        )
        return ", ".join(f"`{column}`" for (column,) in found)

    def bare(self, batch, send=None):
        """The limit: read in order, send all if told to, delete in one statement, commit."""
        return asyncio.run(self._bare(batch, send))

    async def _bare(self, batch, send):
        import asyncmy

        from postroom.model.url import Url

        parsed = Url.parse(self.url)
        connection = await asyncmy.connect(
            host=parsed.host, port=parsed.port or 3306, user=parsed.user or "root",
            password=parsed.password or "", db=parsed.database, charset="utf8mb4", autocommit=True,
        )  # fmt: skip
        sent = 0
        async with connection.cursor() as cursor:
            while True:
                await cursor.execute(
                    f"SELECT {COLUMNS} FROM postroom_outbox WHERE stage = 'ready' "
                    f"ORDER BY seq LIMIT {batch}"
                )
                found = await cursor.fetchall()
                if not found:
                    break
                if send:
                    send([message(row) for row in found])
                marks = ",".join(str(row[0]) for row in found)
                await cursor.execute(f"DELETE FROM postroom_outbox WHERE seq IN ({marks})")
                sent += len(found)
        connection.close()
        return sent

    def _crowd(self, kind, number):
        later = "UTC_TIMESTAMP(6) + INTERVAL 1 DAY"
        now = "UTC_TIMESTAMP(6)"
        state, stage, due, settled = {
            "done": ("done", "over", "NULL", now),
            "scheduled": ("pending", "waiting", later, "'9999-12-31'"),
            "followers": ("pending", "parked", "NULL", "'9999-12-31'"),
        }[kind]
        columns = (
            "id, stream, lane, key_hash, type, topic, `key`, payload, content_type, size, "
            "occurred_at, created_at, state, stage, next_attempt_at, settled_at"
        )
        hashed, key = "UNHEX(MD5(n))", "CONCAT('c', n % 1000)"
        lane = f"ASCII({hashed}) % 64"
        if kind == "followers":
            lane, hashed, key = str(BLOCKED_LANE), f"UNHEX('{BLOCKED.hex()}')", "'blocked'"
            self.run(
                f"INSERT INTO postroom_outbox ({columns}) VALUES ('head', 'main', {lane}, {hashed},"
                f" 'b', 't', 'blocked', '{{}}', 'application/json', 2, {now}, {now}, 'failed', "
                f"'waiting', {later}, '9999-12-31')"
            )
            self.run(
                "INSERT INTO postroom_block (stream, key_hash, lane, barrier, `key`, since) SELECT "
                f"'main', key_hash, lane, seq, `key`, {now} FROM postroom_outbox WHERE id = 'head'"
            )
        self.run(
            f"INSERT INTO postroom_outbox ({columns}) SELECT CONCAT('{kind}-', n), 'main', {lane}, "
            f"{hashed}, 'b', 't', {key}, '{PAYLOAD_TEXT}', 'application/json', "
            f"{len(PAYLOAD_TEXT)}, "
            f"{now}, {now}, "
            f"'{state}', '{stage}', {due}, {settled} FROM ("
            "WITH RECURSIVE d AS (SELECT 0 AS i UNION ALL SELECT i + 1 FROM d WHERE i < 999) "
            "SELECT a.i * 1000 + b.i AS n FROM d AS a CROSS JOIN d AS b) AS numbers "
            f"WHERE n < {number}"
        )
