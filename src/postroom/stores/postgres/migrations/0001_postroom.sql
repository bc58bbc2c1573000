-- Events. `state` is for operators; `stage` decides where the relay looks (only 'ready' is in the index it walks).
CREATE TABLE postroom_outbox (
    seq             bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY CHECK (seq > 0),
    id              text COLLATE "C" NOT NULL UNIQUE,
    stream          text COLLATE "C" NOT NULL DEFAULT 'main',
    lane            smallint NOT NULL CHECK (lane BETWEEN 0 AND 63),
    key_hash        bytea    NOT NULL CHECK (octet_length(key_hash) = 16),
    type            text COLLATE "C" NOT NULL,
    topic           text COLLATE "C" NOT NULL,
    key             text COLLATE "C",
    aggregate_type  text COLLATE "C",
    aggregate_id    text COLLATE "C",
    payload         text,
    payload_bytes   bytea,
    content_type    text     NOT NULL,
    headers         text,
    correlation_id  text,
    causation_path  text,
    schema_version  integer  NOT NULL DEFAULT 1,
    kseq            bigint,
    size            integer  NOT NULL,
    occurred_at     timestamptz NOT NULL,
    created_at      timestamptz NOT NULL,
    available_at    timestamptz,
    state           text     NOT NULL DEFAULT 'pending',
    stage           text     NOT NULL DEFAULT 'ready',
    attempts        integer  NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 999999),
    next_attempt_at timestamptz,
    last_error      text,
    lease_owner     text,
    lease_until     timestamptz,
    settled_at      timestamptz,
    CHECK (lane = get_byte(key_hash, 0) % 64),
    CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    -- A read is bounded by `size`, the bytes of payload and headers in UTF-8. The lengths here are those of the
    -- database's own encoding, which are known without fetching what is stored apart.
    CHECK (size BETWEEN coalesce(octet_length(payload), octet_length(payload_bytes)) + coalesce(octet_length(headers), 0)
        AND 4 * (coalesce(octet_length(payload), octet_length(payload_bytes)) + coalesce(octet_length(headers), 0))),
    CHECK (stage <> 'waiting' OR next_attempt_at IS NOT NULL),
    CHECK ((settled_at IS NOT NULL) = (stage = 'over')),
    CHECK (CASE state
        WHEN 'pending'    THEN stage IN ('ready', 'waiting', 'parked')
        WHEN 'processing' THEN stage = 'ready'
        WHEN 'failed'     THEN stage IN ('ready', 'waiting', 'parked')
        WHEN 'done'       THEN stage = 'over'
        WHEN 'dead'       THEN stage = 'over'
        WHEN 'expired'    THEN stage = 'over'
        WHEN 'cancelled'  THEN stage = 'over'
        ELSE false END)
) WITH (
    -- Every event leaves dead rows and dead index entries behind. The usual fifth of a table with a day of done rows
    -- would be hundreds of thousands of them at the head of the index that reads walk: clean sooner.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000
    -- fillfactor stays 100: `stage` and `state` stand in indexes, so no change of them could stay on its page (HOT).
);
CREATE INDEX postroom_outbox_ready   ON postroom_outbox (stream, lane, seq) WHERE stage = 'ready';
CREATE INDEX postroom_outbox_waiting ON postroom_outbox (stream, lane, next_attempt_at) WHERE stage = 'waiting';
CREATE INDEX postroom_outbox_parked  ON postroom_outbox (stream, key_hash, seq) WHERE stage = 'parked';
CREATE INDEX postroom_outbox_done    ON postroom_outbox (settled_at, stream) WHERE state = 'done';
CREATE INDEX postroom_outbox_other   ON postroom_outbox (stream, state, seq)
    WHERE state IN ('processing', 'failed', 'dead', 'expired', 'cancelled');
CREATE INDEX postroom_outbox_key     ON postroom_outbox (key, seq) WHERE key IS NOT NULL;

-- One row per lane of a stream: the relay that may read and settle it. Every take raises the token. A lease is live before `until`,
-- unless `until` lies more than two lengths ahead: such a lease was written before the server's clock was set back.
CREATE TABLE postroom_lease (
    stream  text COLLATE "C" NOT NULL,
    lane    smallint NOT NULL CHECK (lane BETWEEN 0 AND 63),
    owner   text COLLATE "C",
    token   bigint   NOT NULL DEFAULT 0,
    until   timestamptz NOT NULL DEFAULT '-infinity',
    length  interval NOT NULL DEFAULT '0',
    replayed_at timestamptz NOT NULL DEFAULT '-infinity', -- when an event of the lane was last replayed
    replayed    bigint, -- the lowest number that was replayed since the token was given: reads begin no higher
    PRIMARY KEY (stream, lane),
    -- Beats and takes compute with these, with those of all lanes together.
    CHECK (token BETWEEN 0 AND 4611686018427387904),
    CHECK (length BETWEEN interval '0' AND interval '200 years')
) WITH (fillfactor = 50); -- room for the next version of each row on its own page: a renewal touches no index

-- The relays that serve a stream, those without a lane included.
CREATE TABLE postroom_member (
    stream  text COLLATE "C" NOT NULL,
    owner   text COLLATE "C" NOT NULL,
    name    text     NOT NULL DEFAULT '',
    healthy boolean  NOT NULL DEFAULT true,
    until   timestamptz NOT NULL,
    length  interval NOT NULL,
    PRIMARY KEY (stream, owner),
    CHECK (length BETWEEN interval '0' AND interval '200 years')
) WITH (fillfactor = 50);

-- A key held by its failed head: its events up to `barrier` may go, later ones wait.
CREATE TABLE postroom_block (
    stream         text COLLATE "C" NOT NULL,
    key_hash       bytea    NOT NULL,
    lane           smallint NOT NULL CHECK (lane BETWEEN 0 AND 63),
    barrier        bigint   NOT NULL,
    aggregate_type text COLLATE "C",
    key            text COLLATE "C",
    since          timestamptz NOT NULL,
    PRIMARY KEY (stream, lane, key_hash),
    CHECK (octet_length(key_hash) = 16),
    CHECK (lane = get_byte(key_hash, 0) % 64) -- else no step of a key's way on would find it
);

-- Strict order: the last number given to a key. Never pruned.
CREATE TABLE postroom_counter (
    topic    text COLLATE "C" NOT NULL,
    key_hash bytea  NOT NULL,
    last     bigint NOT NULL CHECK (last BETWEEN 0 AND 4611686018427387904),
    PRIMARY KEY (topic, key_hash)
) WITH (fillfactor = 80); -- counting up touches no index

-- The messages that consumers and handlers have accepted. 'received' alone never counts as done.
CREATE TABLE postroom_inbox (
    consumer       text COLLATE "C" NOT NULL,
    id             text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    correlation_id text,
    state          text NOT NULL CHECK (state IN ('received', 'done')),
    received_at    timestamptz NOT NULL,
    processed_at   timestamptz,
    PRIMARY KEY (consumer, id)
);
CREATE INDEX postroom_inbox_processed ON postroom_inbox (consumer, processed_at) WHERE state = 'done';

-- The audit log: each row is written in the transaction of the operation.
CREATE TABLE postroom_audit (
    n        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    who      text    NOT NULL,
    what     text    NOT NULL,
    how_many integer NOT NULL,
    about    text    NOT NULL
);

CREATE TABLE postroom_meta (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- Only the dead letters, with all columns, for operators and their tools.
CREATE VIEW postroom_dead AS
SELECT seq, id, stream, type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes, content_type, headers,
    correlation_id, causation_path, schema_version, kseq, occurred_at, created_at, attempts, last_error,
    settled_at AS died_at
FROM postroom_outbox WHERE state = 'dead';
