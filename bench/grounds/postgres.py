"""PostgreSQL: each round copies prepared rows into an empty outbox."""

import asyncio

from bench.grounds.events import BLOCKED, BLOCKED_LANE, PAYLOAD_TEXT, message, rows

COLUMNS = (
    "seq, id, stream, lane, key_hash, type, topic, key, aggregate_type, aggregate_id, "
    "payload, content_type, headers, correlation_id, causation_path, "
    "schema_version, kseq, occurred_at, created_at, state, attempts"
)


class PostgresGround:
    name = "bare psycopg loop"
    server = None

    def __init__(self, url):
        import psycopg

        from postroom.stores.postgres import PostgresStore

        self.url = url
        asyncio.run(PostgresStore(url).migrate())
        self._connection = psycopg.connect(url, autocommit=True)
        number = self._connection.info.server_version
        self.version = f"PostgreSQL {number // 10000}.{number % 10000}"

    def run(self, sql):
        return self._connection.execute(sql)

    def close(self):
        self._connection.close()
        if self.server:
            self.server.stop()

    def store(self):
        from postroom.stores.postgres import PostgresStore

        return PostgresStore(self.url)

    def prepare(self, name, events, keys, hot=0.0, crowd=None, number=0):
        from postroom.transactions import resolve_sync

        run = self._connection.execute
        run("TRUNCATE postroom_outbox, postroom_block RESTART IDENTITY")
        if crowd:
            self._crowd(crowd, number)
        if events:
            with self._connection.transaction():
                resolve_sync(self._connection, "postroom_").insert(list(rows(events, keys, hot)))
        for table in ("outbox", "block"):
            run(f"DROP TABLE IF EXISTS bench_{name}_{table}")
            run(f"CREATE TABLE bench_{name}_{table} AS SELECT * FROM postroom_{table}")

    def reset(self, name):
        run = self._connection.execute
        run("TRUNCATE postroom_outbox, postroom_block")
        for table in ("outbox", "block"):
            run(
                f"INSERT INTO postroom_{table} OVERRIDING SYSTEM VALUE "
                f"SELECT * FROM bench_{name}_{table}"
            )
        run("VACUUM ANALYZE postroom_outbox")
        run("CHECKPOINT")

    def bare(self, batch, send=None):
        """The limit: read in order, send all if told to, delete in one statement, commit."""
        import psycopg

        connection = psycopg.connect(self.url, autocommit=True)
        cursor = connection.cursor(binary=True)
        sent = 0
        while True:
            found = cursor.execute(
                f"SELECT {COLUMNS} FROM postroom_outbox WHERE stage = 'ready' "
                "ORDER BY seq LIMIT %s",
                (batch,),
            ).fetchall()
            if not found:
                break
            if send:
                send([message(row) for row in found])
            cursor.execute(
                "DELETE FROM postroom_outbox WHERE seq = ANY(%s)", ([row[0] for row in found],)
            )
            sent += len(found)
        connection.close()
        return sent

    def pour(self, number, keys=1_000):
        """Add events that may be sent, quickly."""
        self._connection.execute(
            "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, key, payload, "
            "content_type, size, occurred_at, created_at) SELECT gen_random_uuid()::text, "
            "mod(get_byte(hash, 0), 64), hash, 'bench', 'bench', 'k' || mod(n, %(keys)s), "
            "%(payload)s, 'application/json', %(size)s, now(), now() "
            "FROM generate_series(1, %(number)s) AS n, "
            "decode(md5(mod(n, %(keys)s)::text), 'hex') AS hash",
            {
                "number": number, "keys": keys, "payload": PAYLOAD_TEXT,
                "size": len(PAYLOAD_TEXT),
            },
        )  # fmt: skip

    def shares(self):
        """How many lanes each relay holds."""
        sql = (
            "SELECT count(*) FROM postroom_lease WHERE owner IS NOT NULL "
            "AND until > clock_timestamp() GROUP BY owner"
        )
        return [held for (held,) in self._connection.execute(sql)]

    def size_mb(self):
        """What the outbox takes on disk, with its indexes."""
        sql = "SELECT pg_total_relation_size('postroom_outbox') / 1048576.0"
        return float(self._connection.execute(sql).fetchone()[0])

    def _crowd(self, kind, number):
        if kind == "backlog":
            self.pour(number)
            return
        state, stage, due, settled = {
            "done": ("done", "over", "NULL", "now()"),
            "scheduled": ("pending", "waiting", "now() + interval '1 day'", "NULL"),
            "followers": ("pending", "parked", "NULL", "NULL"),
        }[kind]
        run = self._connection.execute
        columns = (
            "id, stream, lane, key_hash, type, topic, key, payload, content_type, size, "
            "occurred_at, created_at, state, stage, next_attempt_at, settled_at"
        )
        hashed, key = "decode(md5(n::text), 'hex')", "'c' || n % 1000"
        lane = f"get_byte({hashed}, 0) % 64"
        if kind == "followers":
            lane, hashed, key = str(BLOCKED_LANE), f"'\\x{BLOCKED.hex()}'::bytea", "'blocked'"
            run(
                f"INSERT INTO postroom_outbox ({columns}) VALUES ('head', 'main', {lane}, {hashed},"
                f" 'b', 't', 'blocked', '{{}}', 'application/json', 2, now(), now(), 'failed', "
                "'waiting', now() + interval '1 day', NULL)"
            )
            run(
                "INSERT INTO postroom_block (stream, key_hash, lane, barrier, key, since) SELECT "
                "'main', key_hash, lane, seq, key, now() FROM postroom_outbox WHERE id = 'head'"
            )
        run(
            f"INSERT INTO postroom_outbox ({columns}) SELECT '{kind}-' || n, 'main', {lane}, "
            f"{hashed}, 'b', 't', {key}, '{PAYLOAD_TEXT}', 'application/json', 200, now(), now(), "
            f"'{state}', '{stage}', {due}, {settled} FROM generate_series(1, {number}) n"
        )
