-- The record of an event, settings of operators, operations. Only additions at the end of the table, which both servers make
-- without a copy of it: writers and relays of the version before go on. Repeated after an interruption, the statement
-- fails with "duplicate column" (1060), which the migration takes for done.
ALTER TABLE postroom_outbox
    ADD COLUMN causation_id VARBINARY(255) NULL,
    ADD COLUMN options      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    ADD COLUMN expires_at   DATETIME(6) NULL,
    ADD COLUMN history      MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    ADD COLUMN receipt      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    ADD COLUMN replaced_by  VARBINARY(100) NULL;

-- Settings that operators make at run time for a stream, a topic or a consumer: a pause, or limits. paused_at NULL: not paused;
-- paused_until NULL: until it is resumed.
CREATE TABLE IF NOT EXISTS postroom_control (
    kind           ENUM('stream', 'topic', 'consumer') CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name           VARBINARY(255) NOT NULL,
    paused_at      DATETIME(6),
    paused_until   DATETIME(6),
    max_per_second DOUBLE,
    max_in_flight  INT,
    reason         TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    who            VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    changed_at     DATETIME(6) NOT NULL,
    PRIMARY KEY (kind, name),
    CONSTRAINT postroom_control_rate CHECK (max_per_second > 0),
    CONSTRAINT postroom_control_most CHECK (max_in_flight > 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Operations on many events, such as a replay: each goes on in steps, by any process that runs it.
CREATE TABLE IF NOT EXISTS postroom_operation (
    id         VARBINARY(100) NOT NULL,
    kind       VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    request    MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state      ENUM('running', 'paused', 'stopped', 'cancelled', 'done') CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    who        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    created_at DATETIME(6) NOT NULL,
    changed_at DATETIME(6) NOT NULL,
    total      BIGINT,
    handled    BIGINT NOT NULL DEFAULT 0,
    failed     BIGINT NOT NULL DEFAULT 0,
    position   MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    error      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    owner      VARBINARY(255),
    until      DATETIME(6),
    token      BIGINT NOT NULL DEFAULT 0,
    fingerprint VARBINARY(64),
    PRIMARY KEY (id),
    KEY postroom_operation_created (created_at),
    UNIQUE KEY postroom_operation_unfinished (fingerprint)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The outbox for operators: binary columns as text.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW postroom_outbox_readable AS
SELECT seq, CONVERT(id USING utf8mb4) AS id, CONVERT(stream USING utf8mb4) AS stream, lane,
    CONVERT(type USING utf8mb4) AS type, CONVERT(topic USING utf8mb4) AS topic, CONVERT(`key` USING utf8mb4) AS `key`,
    CONVERT(aggregate_type USING utf8mb4) AS aggregate_type, CONVERT(aggregate_id USING utf8mb4) AS aggregate_id,
    state, stage, attempts, next_attempt_at, last_error, created_at,
    CASE WHEN stage = 'over' THEN settled_at END AS settled_at, payload,
    HEX(payload_bytes) AS payload_bytes, CONVERT(content_type USING utf8mb4) AS content_type, headers,
    CONVERT(correlation_id USING utf8mb4) AS correlation_id, causation_path,
    CONVERT(causation_id USING utf8mb4) AS causation_id, schema_version, kseq, size, options, expires_at,
    history, receipt, CONVERT(replaced_by USING utf8mb4) AS replaced_by,
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
    created_at, attempts, last_error, settled_at AS died_at, CONVERT(causation_id USING utf8mb4) AS causation_id,
    options, expires_at, history, CONVERT(replaced_by USING utf8mb4) AS replaced_by
FROM postroom_outbox WHERE open_state = 'dead';
