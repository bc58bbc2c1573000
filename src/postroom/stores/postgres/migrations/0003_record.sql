-- The record of an event, settings of operators, operations. Only additions: writers and relays of the version before go on
-- with their own statements and functions.
ALTER TABLE postroom_outbox
    ADD COLUMN causation_id text COLLATE "C", -- the id of the event that caused this one
    ADD COLUMN options      text,             -- JSON: how to send it (tombstone, partition, partition key)
    ADD COLUMN expires_at   timestamptz,      -- not sent from then on
    ADD COLUMN history      text,             -- JSON: its failed attempts
    ADD COLUMN receipt      text,             -- JSON: where its destination put it
    ADD COLUMN replaced_by  text COLLATE "C"; -- of a dead letter: the id of the edited event that was sent instead

-- Writers have rights by column: roles that may write events get the new columns, too.
DO $body$
DECLARE grantee text;
BEGIN
FOR grantee IN
    SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
    FROM pg_attribute AS c CROSS JOIN LATERAL aclexplode(c.attacl) AS a
    WHERE c.attrelid = 'postroom_outbox'::regclass AND c.attname = 'correlation_id' AND a.privilege_type = 'INSERT'
LOOP
    EXECUTE format('GRANT INSERT (causation_id, options, expires_at) ON postroom_outbox TO %s', grantee);
END LOOP;
END $body$;

-- Settings that operators make at run time for a stream, a topic or a consumer: a pause, or limits.
CREATE TABLE postroom_control (
    kind           text COLLATE "C" NOT NULL CHECK (kind IN ('stream', 'topic', 'consumer')),
    name           text COLLATE "C" NOT NULL,
    paused_at      timestamptz, -- null: not paused
    paused_until   timestamptz, -- null: until it is resumed
    max_per_second double precision CHECK (max_per_second > 0),
    max_in_flight  integer CHECK (max_in_flight > 0),
    reason         text NOT NULL DEFAULT '',
    who            text NOT NULL,
    changed_at     timestamptz NOT NULL,
    PRIMARY KEY (kind, name)
);

-- Operations on many events, such as a replay: each goes on in steps, by any process that runs it.
CREATE TABLE postroom_operation (
    id         text COLLATE "C" PRIMARY KEY,
    kind       text NOT NULL,
    request    text NOT NULL, -- JSON: which events, and how fast
    state      text NOT NULL CHECK (state IN ('running', 'paused', 'stopped', 'cancelled', 'done')),
    who        text NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    total      bigint,        -- of events; null: not counted yet
    handled    bigint NOT NULL DEFAULT 0,
    failed     bigint NOT NULL DEFAULT 0,
    position   text,          -- JSON: where to go on
    error      text,
    owner      text,          -- the process that runs it
    until      timestamptz,   -- its lease
    token      bigint NOT NULL DEFAULT 0, -- increases with each owner, and with each change by an operator
    fingerprint text COLLATE "C" -- of the request; null once it is finished
);
CREATE INDEX postroom_operation_created ON postroom_operation (created_at);
CREATE UNIQUE INDEX postroom_operation_unfinished ON postroom_operation (fingerprint) WHERE fingerprint IS NOT NULL;

-- Relays and operators get the rights on these tables that they have on leases.
DO $body$
DECLARE grantee text;
BEGIN
FOR grantee IN
    SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
    FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
    WHERE c.oid = 'postroom_lease'::regclass AND a.privilege_type = 'UPDATE' AND a.grantee <> c.relowner
LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON postroom_control, postroom_operation TO %s', grantee);
    EXECUTE format('GRANT INSERT ON postroom_audit TO %s', grantee); -- a relay that runs an operation writes entries
END LOOP;
END $body$;

CREATE OR REPLACE VIEW postroom_dead AS
SELECT seq, id, stream, type, topic, key, aggregate_type, aggregate_id, payload, payload_bytes, content_type, headers,
    correlation_id, causation_path, schema_version, kseq, occurred_at, created_at, attempts, last_error,
    settled_at AS died_at, causation_id, options, expires_at, history, replaced_by
FROM postroom_outbox WHERE state = 'dead';

-- As postroom_read, with the columns of this version.
CREATE FUNCTION postroom_read3(
    in_stream text, in_lanes smallint[], in_owner text, in_tokens bigint[], in_floors bigint[],
    in_epoch bigint[], in_per_lane integer, in_rows integer, in_bytes bigint, in_exclude bytea[])
RETURNS TABLE (
    seq bigint, id text, stream text, lane smallint, key_hash bytea, type text, topic text, key text,
    aggregate_type text, aggregate_id text, payload bytea, content_type text, headers text,
    correlation_id text, causation_path text, schema_version integer, kseq bigint, causation_id text, options text,
    expires_at timestamptz,
    occurred_at timestamptz, created_at timestamptz, state text, attempts integer,
    next_attempt_at timestamptz, last_error text, barrier bigint)
LANGUAGE plpgsql STABLE ROWS 500
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan
AS $body$
#variable_conflict use_column
BEGIN
IF in_floors IS NOT NULL THEN in_floors := postroom_floors(in_floors, in_epoch); END IF;
IF in_floors IS NOT NULL THEN  -- replayed events are below them
    in_floors := ARRAY(
        SELECT least(l.floor, f.replayed)
        FROM unnest(in_lanes, in_floors) WITH ORDINALITY AS l (lane, floor, place)
        LEFT JOIN postroom_lease AS f ON f.stream = in_stream AND f.lane = l.lane
        ORDER BY l.place);
END IF;
RETURN QUERY
WITH chosen AS MATERIALIZED (
    SELECT c.seq, c.size
    FROM unnest(in_lanes, in_floors) WITH ORDINALITY AS l (lane, floor, place)
    CROSS JOIN LATERAL (
        SELECT r.seq, r.size, row_number() OVER (ORDER BY r.lane, r.seq) AS n
        FROM postroom_outbox AS r
        WHERE r.stream = in_stream AND r.stage = 'ready'
          AND (r.lane, r.seq) >= (l.lane, coalesce(l.floor, 0)) AND r.lane <= l.lane
          AND (in_exclude IS NULL OR r.key_hash NOT IN (SELECT unnest(in_exclude)))
        ORDER BY r.lane, r.seq LIMIT in_per_lane) AS c
    WHERE in_owner IS NULL OR l.lane = ANY (ARRAY(
        SELECT h.lane FROM postroom_lease AS h
        WHERE h.stream = in_stream AND h.owner = in_owner
          AND h.token = in_tokens[array_position(in_lanes, h.lane)]))
    ORDER BY CASE WHEN c.n = 1 THEN l.place - 100 ELSE c.seq END
    LIMIT in_rows
), cut AS MATERIALIZED (
    SELECT CASE WHEN sum(c.size) <= in_bytes THEN max(c.seq) ELSE (
        SELECT greatest(max(s.seq) FILTER (WHERE s.total <= in_bytes), min(s.seq))
        FROM (SELECT k.seq, sum(k.size) OVER (ORDER BY k.seq) AS total FROM chosen AS k) AS s) END AS last
    FROM chosen AS c
)
SELECT o.seq, o.id, o.stream, o.lane, o.key_hash, o.type, o.topic, o.key, o.aggregate_type, o.aggregate_id,
    coalesce(o.payload_bytes, convert_to(o.payload, 'UTF8')), o.content_type, o.headers, o.correlation_id,
    o.causation_path, o.schema_version, o.kseq, o.causation_id, o.options, postroom_instant(o.expires_at),
    postroom_instant(o.occurred_at), postroom_instant(o.created_at), o.state, o.attempts,
    postroom_instant(o.next_attempt_at), o.last_error,
    CASE WHEN (SELECT EXISTS (  -- once for the whole read: mostly nothing is blocked
        SELECT 1 FROM postroom_block AS b WHERE b.stream = in_stream AND b.lane = ANY (in_lanes)))
    THEN (
        SELECT b.barrier FROM postroom_block AS b
        WHERE b.stream = o.stream AND b.lane = o.lane AND b.key_hash = o.key_hash) END
FROM postroom_outbox AS o
WHERE o.seq = ANY (ARRAY(SELECT c.seq FROM chosen AS c WHERE c.seq <= (SELECT k.last FROM cut AS k)))
ORDER BY o.seq;
END $body$;

-- As postroom_settle, which now writes receipts too.
--   in_receipts   in the order of in_seqs; null for events without one
CREATE FUNCTION postroom_settle3(
    in_stream text, in_owner text, in_lanes smallint[], in_tokens bigint[], in_seqs bigint[], in_ids text[],
    in_receipts text[], in_keep boolean, OUT held smallint[], OUT unchanged bigint[])
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan
AS $body$
DECLARE ended bigint[];
BEGIN
WITH fence AS MATERIALIZED (
    SELECT f.lane FROM postroom_lease AS f
    WHERE f.stream = in_stream AND f.lane = ANY (in_lanes) AND f.owner = in_owner
      AND f.token = in_tokens[array_position(in_lanes, f.lane)] AND f.until > clock_timestamp()
    ORDER BY f.lane FOR SHARE)
SELECT array_agg(f.lane) INTO held FROM fence AS f;
IF in_keep THEN
    WITH done AS (
        UPDATE postroom_outbox AS o
        SET state = 'done', stage = 'over', settled_at = clock_timestamp(),
            next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL,
            receipt = in_receipts[width_bucket(o.seq, in_seqs)]
        WHERE o.seq = ANY (in_seqs) AND o.id = in_ids[width_bucket(o.seq, in_seqs)]
          AND o.stage <> 'over' AND o.stream = in_stream AND o.lane = ANY (held)
        RETURNING o.seq)
    SELECT array_agg(d.seq) INTO ended FROM done AS d;
ELSE
    WITH done AS (
        DELETE FROM postroom_outbox AS o
        WHERE o.seq = ANY (in_seqs) AND o.id = in_ids[width_bucket(o.seq, in_seqs)]
          AND o.stage <> 'over' AND o.stream = in_stream AND o.lane = ANY (held)
        RETURNING o.seq)
    SELECT array_agg(d.seq) INTO ended FROM done AS d;
END IF;
IF coalesce(cardinality(ended), 0) < cardinality(in_seqs) THEN
    unchanged := ARRAY(SELECT n FROM unnest(in_seqs) AS n EXCEPT SELECT e FROM unnest(ended) AS e);
END IF;
held := coalesce(held, '{}');
END $body$;

-- As postroom_stage, but an event that an application's transaction has locked, to cancel or reschedule it, is left for a
-- later look: it must not hold up the others.
CREATE FUNCTION postroom_stage3(
    in_stream text, in_lanes smallint[], in_owners text[], in_tokens bigint[], in_floors bigint[],
    in_epoch bigint[], in_limit integer)
RETURNS TABLE (moved bigint, due_seconds double precision, ready boolean, lanes smallint[], lowest bigint[])
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan
AS $body$
DECLARE
    due timestamptz;
    started timestamptz := clock_timestamp();
    busy bigint;
    held smallint[];
BEGIN
SELECT min(w.next_attempt_at), count(*) FILTER (WHERE w.next_attempt_at <= started) INTO due, busy
FROM unnest(in_lanes) AS l (lane)
CROSS JOIN LATERAL (
    SELECT o.next_attempt_at FROM postroom_outbox AS o
    WHERE o.stream = in_stream AND o.lane = l.lane AND o.stage = 'waiting'
    ORDER BY o.next_attempt_at LIMIT 1) AS w;
moved := 0;
IF in_floors IS NOT NULL THEN in_floors := postroom_floors(in_floors, in_epoch); END IF;
IF in_floors IS NOT NULL THEN  -- replayed events are below them
    in_floors := ARRAY(
        SELECT least(l.floor, f.replayed)
        FROM unnest(in_lanes, in_floors) WITH ORDINALITY AS l (lane, floor, place)
        LEFT JOIN postroom_lease AS f ON f.stream = in_stream AND f.lane = l.lane
        ORDER BY l.place);
END IF;
IF due <= started THEN
    WITH fence AS MATERIALIZED (
        SELECT f.lane FROM postroom_lease AS f
        WHERE f.stream = in_stream AND f.lane = ANY (in_lanes) AND (f.owner IS NULL OR (
            f.owner = in_owners[array_position(in_lanes, f.lane)]
            AND f.token = in_tokens[array_position(in_lanes, f.lane)]))
        ORDER BY f.lane FOR SHARE SKIP LOCKED)
    SELECT array_agg(l.lane) INTO held FROM unnest(in_lanes) AS l (lane)
    WHERE l.lane IN (SELECT f.lane FROM fence AS f) OR NOT EXISTS (
        SELECT 1 FROM postroom_lease AS f WHERE f.stream = in_stream AND f.lane = l.lane);
    WITH back AS (
        UPDATE postroom_outbox AS o SET stage = 'ready'
        WHERE o.stage = 'waiting' AND o.seq = ANY (ARRAY(
            SELECT w.seq FROM unnest(held) AS l (lane)
            CROSS JOIN LATERAL (
                SELECT d.seq FROM postroom_outbox AS d
                WHERE d.stream = in_stream AND d.lane = l.lane AND d.stage = 'waiting' AND d.next_attempt_at <= started
                ORDER BY d.next_attempt_at LIMIT ceil(in_limit::float8 / busy)
                FOR NO KEY UPDATE SKIP LOCKED) AS w
            LIMIT in_limit))
        RETURNING o.lane, o.seq)
    SELECT coalesce(sum(b.n), 0), array_agg(b.lane), array_agg(b.least) INTO moved, lanes, lowest
    FROM (SELECT k.lane, count(*) AS n, min(k.seq) AS least FROM back AS k GROUP BY k.lane) AS b;
    SELECT min(w.next_attempt_at) INTO due
    FROM unnest(held) AS l (lane)
    CROSS JOIN LATERAL (
        SELECT o.next_attempt_at FROM postroom_outbox AS o
        WHERE o.stream = in_stream AND o.lane = l.lane AND o.stage = 'waiting'
        ORDER BY o.next_attempt_at LIMIT 1) AS w;
    IF cardinality(held) IS DISTINCT FROM cardinality(in_lanes) THEN
        due := least(due, started + interval '0.1 s');  -- locked lanes are looked at again, but not in a busy loop
    END IF;
    IF moved = 0 AND due <= started THEN
        due := started + interval '0.1 s';  -- so are locked events
    END IF;
END IF;
due_seconds := CASE WHEN isfinite(due) THEN greatest(date_part('epoch', due - clock_timestamp()), 0) END;
ready := moved > 0 OR EXISTS (
    SELECT 1 FROM unnest(in_lanes, in_floors) AS l (lane, floor)
    CROSS JOIN LATERAL (
        SELECT o.seq FROM postroom_outbox AS o
        WHERE o.stream = in_stream AND o.stage = 'ready'
          AND (o.lane, o.seq) >= (l.lane, coalesce(l.floor, 0)) AND o.lane <= l.lane
        ORDER BY o.lane, o.seq LIMIT 1) AS r);
RETURN NEXT;
END $body$;
