-- The record of an event, settings of operators, operations. Only additions: writers of the version before go on.
ALTER TABLE postroom_outbox ADD COLUMN causation_id TEXT; -- the id of the event that caused this one
ALTER TABLE postroom_outbox ADD COLUMN options TEXT; -- JSON: how to send it (tombstone, partition, partition key)
ALTER TABLE postroom_outbox ADD COLUMN expires_at INTEGER; -- not sent from then on
ALTER TABLE postroom_outbox ADD COLUMN history TEXT; -- JSON: its failed attempts
ALTER TABLE postroom_outbox ADD COLUMN receipt TEXT; -- JSON: where its destination put it
ALTER TABLE postroom_outbox ADD COLUMN replaced_by TEXT; -- of a dead letter: the id of the edited event that was sent instead

-- Settings that operators make at run time for a stream, a topic or a consumer: a pause, or limits.
CREATE TABLE postroom_control (
    kind           TEXT NOT NULL CHECK (kind IN ('stream', 'topic', 'consumer')),
    name           TEXT NOT NULL,
    paused_at      INTEGER, -- null: not paused
    paused_until   INTEGER, -- null: until it is resumed
    max_per_second REAL CHECK (max_per_second > 0),
    max_in_flight  INTEGER CHECK (max_in_flight > 0),
    reason         TEXT NOT NULL DEFAULT '',
    who            TEXT NOT NULL,
    changed_at     INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- Operations on many events, such as a replay: each goes on in steps, by any process that runs it.
CREATE TABLE postroom_operation (
    id         TEXT NOT NULL PRIMARY KEY,
    kind       TEXT NOT NULL,
    request    TEXT NOT NULL, -- JSON: which events, and how fast
    state      TEXT NOT NULL CHECK (state IN ('running', 'paused', 'stopped', 'cancelled', 'done')),
    who        TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    total      INTEGER,       -- of events; null: not counted yet
    handled    INTEGER NOT NULL DEFAULT 0,
    failed     INTEGER NOT NULL DEFAULT 0,
    position   TEXT,          -- JSON: where to go on
    error      TEXT,
    owner      TEXT,          -- the process that runs it
    until      INTEGER,       -- its lease
    token      INTEGER NOT NULL DEFAULT 0, -- increases with each owner, and with each change by an operator
    fingerprint TEXT          -- of the request; null once it is finished
) WITHOUT ROWID;
CREATE INDEX postroom_operation_created ON postroom_operation (created_at);
CREATE UNIQUE INDEX postroom_operation_unfinished ON postroom_operation (fingerprint) WHERE fingerprint IS NOT NULL;

DROP VIEW postroom_dead;
CREATE VIEW postroom_dead AS
SELECT seq, id, stream, type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes, content_type, headers,
    correlation_id, causation_path, schema_version, kseq, occurred_at, created_at, attempts, last_error,
    settled_at AS died_at, causation_id, options, expires_at, history, replaced_by
FROM postroom_outbox WHERE state = 'dead';
