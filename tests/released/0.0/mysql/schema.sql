-- For MySQL 8 (8.0.16 or newer) and MariaDB 10.11. DDL commits implicitly here: every statement can be run again.
-- Names, ids, keys and hashes are binary: MySQL's text collations take 'a' and 'A ' for the same. People read the
-- view postroom_outbox_readable. Times are UTC.

-- Events. `state` is for operators; `stage` decides where the relay looks. The columns after settled_at are computed, for the
-- indexes alone. An index has an entry for every row, and a settle pays for each entry that it changes, so:
--   shelf, slot   one index for two walks: the ready rows of a lane in order, and the done rows by second, to prune.
--                 It holds the key, too: a read walks past 200,000 events of a key in flight without fetching a row
--   due_lane, parked_key, open_state   NULL where their index does not apply; a settle does not touch columns that stay NULL
-- `settled_at` has a value from the beginning (the year 9999: not yet): a row that does not grow is changed in place.
CREATE TABLE IF NOT EXISTS postroom_outbox (
    seq             BIGINT           NOT NULL AUTO_INCREMENT,
    id              VARBINARY(100)   NOT NULL,
    stream          VARBINARY(64)    NOT NULL DEFAULT 'main',
    lane            TINYINT UNSIGNED NOT NULL,
    key_hash        VARBINARY(16)    NOT NULL,
    type            VARBINARY(255)   NOT NULL,
    topic           VARBINARY(249)   NOT NULL,
    `key`           VARBINARY(255),
    aggregate_type  VARBINARY(255),
    aggregate_id    VARBINARY(255),
    payload         LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    payload_bytes   LONGBLOB,
    content_type    VARBINARY(255)   NOT NULL,
    headers         MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    correlation_id  VARBINARY(255),
    causation_path  MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    schema_version  INT              NOT NULL DEFAULT 1,
    kseq            BIGINT,
    size            INT              NOT NULL,
    occurred_at     DATETIME(6)      NOT NULL,
    created_at      DATETIME(6)      NOT NULL,
    available_at    DATETIME(6),
    state           ENUM('pending', 'processing', 'done', 'failed', 'dead', 'expired', 'cancelled')
                                     CHARACTER SET ascii COLLATE ascii_bin
                                     NOT NULL DEFAULT 'pending',
    stage           ENUM('ready', 'waiting', 'parked', 'over') CHARACTER SET ascii COLLATE ascii_bin
                                     NOT NULL DEFAULT 'ready',
    attempts        INT              NOT NULL DEFAULT 0,
    next_attempt_at DATETIME(6),
    last_error      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    lease_owner     VARBINARY(255),
    lease_until     DATETIME(6),
    settled_at      DATETIME(6)      NOT NULL DEFAULT '9999-12-31',
    shelf           ENUM('ready', 'waiting', 'parked', 'dead', 'done', 'expired', 'cancelled')
                                     CHARACTER SET ascii COLLATE ascii_bin
                                     AS (CASE WHEN stage = 'over' THEN state ELSE stage END) STORED,
    slot            INT UNSIGNED     AS (CASE WHEN state IN ('done', 'expired', 'cancelled')
                                              THEN TIMESTAMPDIFF(SECOND, '1970-01-01', settled_at) ELSE lane END) STORED,
    due_lane        TINYINT UNSIGNED AS (CASE WHEN stage = 'waiting' THEN lane END) STORED,
    parked_key      VARBINARY(16)    AS (CASE WHEN stage = 'parked' THEN key_hash END) STORED,
    open_state      VARBINARY(10)    AS (CASE WHEN state IN ('processing', 'failed', 'dead', 'expired', 'cancelled')
                                              THEN state END) STORED,
    PRIMARY KEY (seq),
    UNIQUE KEY postroom_outbox_id (id),
    KEY postroom_outbox_shelf  (shelf, stream, slot, seq, size, key_hash),
    KEY postroom_outbox_due    (due_lane, stream, next_attempt_at, seq),
    KEY postroom_outbox_parked (parked_key, stream, seq),
    KEY postroom_outbox_open   (open_state, seq, stream),
    KEY postroom_outbox_key    (`key`, seq),
    CONSTRAINT postroom_outbox_lane     CHECK (lane = ASCII(key_hash) % 64),
    CONSTRAINT postroom_outbox_key_hash CHECK (OCTET_LENGTH(key_hash) = 16),
    CONSTRAINT postroom_outbox_attempts CHECK (attempts BETWEEN 0 AND 999999),
    CONSTRAINT postroom_outbox_payload  CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    -- A payload or header that a connection's character set has changed is refused, in every sql_mode.
    CONSTRAINT postroom_outbox_size     CHECK (size = COALESCE(OCTET_LENGTH(payload), OCTET_LENGTH(payload_bytes))
                                                      + COALESCE(OCTET_LENGTH(headers), 0)),
    CONSTRAINT postroom_outbox_waiting  CHECK (stage <> 'waiting' OR next_attempt_at IS NOT NULL),
    CONSTRAINT postroom_outbox_settled  CHECK ((settled_at < '9999-12-31') = (stage = 'over')),
    CONSTRAINT postroom_outbox_stage    CHECK (CASE state
        WHEN 'pending'    THEN stage IN ('ready', 'waiting', 'parked')
        WHEN 'processing' THEN stage = 'ready'
        WHEN 'failed'     THEN stage IN ('ready', 'waiting', 'parked')
        WHEN 'done'       THEN stage = 'over'
        WHEN 'dead'       THEN stage = 'over'
        WHEN 'expired'    THEN stage = 'over'
        WHEN 'cancelled'  THEN stage = 'over'
        ELSE FALSE END)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per lane of a stream: the relay that may read and settle it. Every take raises the token; every settle writes the
-- row first (`settles`), so that no other relay can take the lane between its check and its commit. A lease is live before
-- `until`, unless `until` lies more than two lengths (microseconds) ahead: such a lease was written before the server's
-- clock was set back.
CREATE TABLE IF NOT EXISTS postroom_lease (
    stream  VARBINARY(64)    NOT NULL,
    lane    TINYINT UNSIGNED NOT NULL,
    owner   VARBINARY(255),
    token   BIGINT           NOT NULL DEFAULT 0,
    until   DATETIME(6)      NOT NULL DEFAULT '1970-01-01',
    length  BIGINT           NOT NULL DEFAULT 0,
    replayed_at DATETIME(6)  NOT NULL DEFAULT '1970-01-01', -- when an event of the lane was last replayed
    settles BIGINT           NOT NULL DEFAULT 0,
    PRIMARY KEY (stream, lane),
    CONSTRAINT postroom_lease_lane   CHECK (lane < 64),
    -- Beats, takes and settles compute with these, with those of all lanes together.
    CONSTRAINT postroom_lease_token  CHECK (token BETWEEN 0 AND 4611686018427387904),
    CONSTRAINT postroom_lease_length CHECK (length BETWEEN 0 AND 4000000000000000),
    CONSTRAINT postroom_lease_writes CHECK (settles BETWEEN 0 AND 4611686018427387904)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The relays that serve a stream, those without a lane included.
CREATE TABLE IF NOT EXISTS postroom_member (
    stream  VARBINARY(64)  NOT NULL,
    owner   VARBINARY(255) NOT NULL,
    name    VARBINARY(255) NOT NULL DEFAULT '',
    healthy BOOLEAN        NOT NULL DEFAULT TRUE,
    until   DATETIME(6)    NOT NULL,
    length  BIGINT         NOT NULL,
    PRIMARY KEY (stream, owner),
    CONSTRAINT postroom_member_length CHECK (length BETWEEN 0 AND 4000000000000000)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A key held by its failed head: its events up to `barrier` may go, later ones wait.
CREATE TABLE IF NOT EXISTS postroom_block (
    stream         VARBINARY(64)    NOT NULL,
    key_hash       VARBINARY(16)    NOT NULL,
    lane           TINYINT UNSIGNED NOT NULL,
    barrier        BIGINT           NOT NULL,
    aggregate_type VARBINARY(255),
    `key`          VARBINARY(255),
    since          DATETIME(6)      NOT NULL,
    PRIMARY KEY (stream, key_hash),
    KEY postroom_block_lane (stream, lane),
    CONSTRAINT postroom_block_lane     CHECK (lane = ASCII(key_hash) % 64),
    CONSTRAINT postroom_block_key_hash CHECK (OCTET_LENGTH(key_hash) = 16)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Strict order: the last number given to a key. Never pruned.
CREATE TABLE IF NOT EXISTS postroom_counter (
    topic    VARBINARY(249) NOT NULL,
    key_hash VARBINARY(16)  NOT NULL,
    last     BIGINT         NOT NULL,
    PRIMARY KEY (topic, key_hash),
    CONSTRAINT postroom_counter_last CHECK (last BETWEEN 0 AND 4611686018427387904)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The messages that consumers and handlers have accepted. 'received' alone never counts as done.
CREATE TABLE IF NOT EXISTS postroom_inbox (
    consumer       VARBINARY(255) NOT NULL,
    id             VARBINARY(255) NOT NULL,
    type           VARBINARY(255) NOT NULL,
    correlation_id VARBINARY(255),
    state          ENUM('received', 'done') CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    received_at    DATETIME(6)    NOT NULL,
    processed_at   DATETIME(6),
    PRIMARY KEY (consumer, id),
    KEY postroom_inbox_processed (consumer, state, processed_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The audit log: each row is written in the transaction of the operation.
CREATE TABLE IF NOT EXISTS postroom_audit (
    n        BIGINT       NOT NULL AUTO_INCREMENT,
    at       DATETIME(6)  NOT NULL,
    who      VARCHAR(255) NOT NULL,
    what     VARCHAR(20)  NOT NULL,
    how_many INT          NOT NULL,
    about    TEXT         NOT NULL,
    PRIMARY KEY (n)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS postroom_meta (
    name  VARCHAR(100) NOT NULL,
    value VARCHAR(255) NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The outbox for operators: binary columns as text.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW postroom_outbox_readable AS
SELECT seq, CONVERT(id USING utf8mb4) AS id, CONVERT(stream USING utf8mb4) AS stream, lane,
    CONVERT(type USING utf8mb4) AS type, CONVERT(topic USING utf8mb4) AS topic, CONVERT(`key` USING utf8mb4) AS `key`,
    CONVERT(aggregate_type USING utf8mb4) AS aggregate_type, CONVERT(aggregate_id USING utf8mb4) AS aggregate_id,
    state, stage, attempts, next_attempt_at, last_error, created_at,
    CASE WHEN stage = 'over' THEN settled_at END AS settled_at, payload,
    HEX(payload_bytes) AS payload_bytes, CONVERT(content_type USING utf8mb4) AS content_type, headers,
    CONVERT(correlation_id USING utf8mb4) AS correlation_id, causation_path, schema_version, kseq, size,
    occurred_at, available_at, CONVERT(lease_owner USING utf8mb4) AS lease_owner, lease_until,
    LOWER(HEX(key_hash)) AS key_hash
FROM postroom_outbox;

-- Only the dead letters, with all columns, for operators and their tools.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW postroom_dead AS
SELECT seq, CONVERT(id USING utf8mb4) AS id, CONVERT(stream USING utf8mb4) AS stream,
    CONVERT(type USING utf8mb4) AS type, CONVERT(topic USING utf8mb4) AS topic, CONVERT(`key` USING utf8mb4) AS `key`,
    CONVERT(aggregate_type USING utf8mb4) AS aggregate_type, CONVERT(aggregate_id USING utf8mb4) AS aggregate_id,
    payload, payload_bytes, CONVERT(content_type USING utf8mb4) AS content_type, headers,
    CONVERT(correlation_id USING utf8mb4) AS correlation_id, causation_path, schema_version, kseq, occurred_at,
    created_at, attempts, last_error, settled_at AS died_at
FROM postroom_outbox WHERE open_state = 'dead';
