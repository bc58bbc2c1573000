-- Events. `state` is for operators; `stage` decides where the relay looks (only 'ready' is in the index it walks).
-- Times are microseconds since 1970, UTC.
CREATE TABLE postroom_outbox (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT CHECK (seq > 0),
    id              TEXT    NOT NULL UNIQUE,
    stream          TEXT    NOT NULL DEFAULT 'main',
    lane            INTEGER NOT NULL CHECK (lane BETWEEN 0 AND 63),
    key_hash        BLOB    NOT NULL CHECK (length(key_hash) = 16),
    type            TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    key             TEXT,
    aggregate_type  TEXT,
    aggregate_id    TEXT,
    payload         TEXT,
    payload_bytes   BLOB,
    content_type    TEXT    NOT NULL,
    headers         TEXT,
    correlation_id  TEXT,
    causation_path  TEXT,
    schema_version  INTEGER NOT NULL DEFAULT 1,
    kseq            INTEGER,
    size            INTEGER NOT NULL,
    occurred_at     INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    available_at    INTEGER,
    state           TEXT    NOT NULL DEFAULT 'pending',
    stage           TEXT    NOT NULL DEFAULT 'ready',
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 999999),
    next_attempt_at INTEGER,
    last_error      TEXT,
    lease_owner     TEXT,
    lease_until     INTEGER,
    settled_at      INTEGER,
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    -- A read is bounded by `size`, in bytes; the length of text is counted in characters, of up to four bytes.
    CHECK (size BETWEEN coalesce(length(payload), length(payload_bytes)) + coalesce(length(headers), 0)
        AND 4 * (coalesce(length(payload), length(payload_bytes)) + coalesce(length(headers), 0))),
    CHECK (typeof(stream) = 'text' AND typeof(lane) = 'integer'), -- else no read would find it
    -- Its first byte decides about the lane of a key; SQLite has no function for the number of a byte.
    CHECK (typeof(key_hash) = 'blob' AND lane = (instr('0123456789ABCDEF', substr(hex(key_hash), 1, 1)) - 1) % 4 * 16
        + instr('0123456789ABCDEF', substr(hex(key_hash), 2, 1)) - 1),
    CHECK (stage <> 'waiting' OR typeof(next_attempt_at) = 'integer'),
    CHECK ((settled_at IS NOT NULL) = (stage = 'over')),
    CHECK (CASE state
        WHEN 'pending'    THEN stage IN ('ready', 'waiting', 'parked')
        WHEN 'processing' THEN stage = 'ready'
        WHEN 'failed'     THEN stage IN ('ready', 'waiting', 'parked')
        WHEN 'done'       THEN stage = 'over'
        WHEN 'dead'       THEN stage = 'over'
        WHEN 'expired'    THEN stage = 'over'
        WHEN 'cancelled'  THEN stage = 'over'
        ELSE 0 END)
);
-- `stage` is in the key although it is the same in all: only so SQLite answers from the index alone; seq is the rowid.
CREATE INDEX postroom_outbox_ready   ON postroom_outbox (stream, lane, stage) WHERE stage = 'ready';
CREATE INDEX postroom_outbox_waiting ON postroom_outbox (stream, lane, next_attempt_at) WHERE stage = 'waiting';
CREATE INDEX postroom_outbox_parked  ON postroom_outbox (stream, key_hash, seq) WHERE stage = 'parked';
CREATE INDEX postroom_outbox_done    ON postroom_outbox (settled_at, stream) WHERE state = 'done';
CREATE INDEX postroom_outbox_other   ON postroom_outbox (stream, state, seq)
    WHERE state = 'processing' OR state = 'failed' OR state = 'dead' OR state = 'expired' OR state = 'cancelled';
CREATE INDEX postroom_outbox_key     ON postroom_outbox (key) WHERE key IS NOT NULL;

-- One row per lane of a stream: the relay that may read and settle it. Every take raises the token. A lease is live before `until`,
-- unless `until` lies more than two lengths ahead: such a lease was written before the host's clock was set back.
CREATE TABLE postroom_lease (
    stream  TEXT    NOT NULL,
    lane    INTEGER NOT NULL CHECK (lane BETWEEN 0 AND 63),
    owner   TEXT,
    token   INTEGER NOT NULL DEFAULT 0,
    until   INTEGER NOT NULL DEFAULT 0,
    length  INTEGER NOT NULL DEFAULT 0,
    replayed_at INTEGER NOT NULL DEFAULT 0, -- when an event of the lane was last replayed
    PRIMARY KEY (stream, lane),
    CHECK (typeof(lane) = 'integer' AND typeof(until) = 'integer'),
    CHECK (typeof(token) = 'integer' AND token BETWEEN 0 AND 4611686018427387904), -- a take adds one
    CHECK (typeof(length) = 'integer' AND length BETWEEN 0 AND 4000000000000000)
) WITHOUT ROWID;

-- The relays that serve a stream, those without a lane included.
CREATE TABLE postroom_member (
    stream  TEXT    NOT NULL,
    owner   TEXT    NOT NULL,
    name    TEXT    NOT NULL DEFAULT '',
    healthy INTEGER NOT NULL DEFAULT 1,
    until   INTEGER NOT NULL,
    length  INTEGER NOT NULL,
    PRIMARY KEY (stream, owner),
    CHECK (typeof(owner) = 'text' AND typeof(until) = 'integer'),
    CHECK (typeof(length) = 'integer' AND length BETWEEN 0 AND 4000000000000000)
) WITHOUT ROWID;

-- A key held by its failed head: its events up to `barrier` may go, later ones wait.
CREATE TABLE postroom_block (
    stream         TEXT    NOT NULL,
    key_hash       BLOB    NOT NULL,
    lane           INTEGER NOT NULL CHECK (lane BETWEEN 0 AND 63),
    barrier        INTEGER NOT NULL,
    aggregate_type TEXT,
    key            TEXT,
    since          INTEGER NOT NULL,
    PRIMARY KEY (stream, key_hash),
    CHECK (typeof(lane) = 'integer' AND typeof(barrier) = 'integer'), -- the barrier is a part of each event read
    CHECK (typeof(key_hash) = 'blob' AND length(key_hash) = 16)
) WITHOUT ROWID;
CREATE INDEX postroom_block_lane ON postroom_block (stream, lane);

-- Strict order: the last number given to a key. Never pruned.
CREATE TABLE postroom_counter (
    topic    TEXT    NOT NULL,
    key_hash BLOB    NOT NULL,
    last     INTEGER NOT NULL CHECK (typeof(last) = 'integer' AND last BETWEEN 0 AND 4611686018427387904),
    PRIMARY KEY (topic, key_hash)
) WITHOUT ROWID;

-- The messages that consumers and handlers have accepted. 'received' alone never counts as done.
CREATE TABLE postroom_inbox (
    consumer       TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    correlation_id TEXT,
    state          TEXT    NOT NULL CHECK (state IN ('received', 'done')),
    received_at    INTEGER NOT NULL,
    processed_at   INTEGER,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;
CREATE INDEX postroom_inbox_processed ON postroom_inbox (consumer, processed_at) WHERE state = 'done';

-- The audit log: each row is written in the transaction of the operation.
CREATE TABLE postroom_audit (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    who      TEXT    NOT NULL,
    what     TEXT    NOT NULL,
    how_many INTEGER NOT NULL,
    about    TEXT    NOT NULL
);

CREATE TABLE postroom_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Only the dead letters, with all columns, for operators and their tools.
CREATE VIEW postroom_dead AS
SELECT seq, id, stream, type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes, content_type, headers,
    correlation_id, causation_path, schema_version, kseq, occurred_at, created_at, attempts, last_error,
    settled_at AS died_at
FROM postroom_outbox WHERE state = 'dead';
