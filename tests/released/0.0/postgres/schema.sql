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

-- The statements that a relay runs for every batch. As functions these statements carry their planner settings with them: a plan that
-- was made while the tables were empty, or from statistics of that time, must not turn into a scan of a million rows
-- (seqscan), into a sort of a whole lane (bitmapscan) or into joins of whole tables (hashjoin, mergejoin). A SET of the
-- session would leak to other clients behind a pooler. `jit` would spend more than it saves; the plan is made once for
-- each session. Only index scans are left, so it does not depend on the values either.
--
-- A lane is asked for as a range, (lane, seq) >= (x, floor) AND lane <= x, in the order of (lane, seq). Said as an
-- equality the order would be that of seq alone, which the primary key has too: from statistics of a time when every
-- event was ready and in one lane the planner takes that one, and walks over all that is done.

-- Where and when numbers were given, as one number: it changes with a restart or another server (start time), and with
-- TRUNCATE, RESTART IDENTITY or a restore (file numbers).
CREATE FUNCTION postroom_epoch() RETURNS bigint
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $body$
SELECT hashtextextended(concat_ws(' ', pg_postmaster_start_time(), pg_relation_filenode('postroom_outbox'::regclass),
    pg_relation_filenode(pg_get_serial_sequence('postroom_outbox', 'seq')::regclass)), 0)
$body$;

-- When this session's backend was started, in microseconds since 1970.
CREATE FUNCTION postroom_backend_start() RETURNS bigint
LANGUAGE sql STABLE
AS $body$
SELECT (extract(epoch FROM a.backend_start) * 1000000)::bigint FROM pg_stat_get_activity(pg_backend_pid()) AS a
$body$;

-- Returns the floors if they can be trusted here, else null.
--   in_epoch   postroom_epoch() when they were proven, and when that was
-- Three things may take numbers back. Another server, a restart or TRUNCATE: the epoch is another one. A crash of any
-- backend, after which the same postmaster recovers: it ends all connections, so a backend that is older than the proof
-- has seen none. setval: the sequence is behind the floors.
CREATE FUNCTION postroom_floors(in_floors bigint[], in_epoch bigint[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $body$
BEGIN
IF in_floors IS NOT NULL AND postroom_epoch() = in_epoch[1] AND postroom_backend_start() <= in_epoch[2]
    AND (SELECT max(f) FROM unnest(in_floors) AS f) <= 1 + coalesce(
        pg_sequence_last_value(pg_get_serial_sequence('postroom_outbox', 'seq')::regclass), 0)
THEN RETURN in_floors; END IF;
RETURN NULL;
END $body$;

-- Makes an instant 30 years late: PostgreSQL counts from 2000, Record from 1970. So the binary form of an instant is the
-- number of microseconds that a Record holds, and no computation is needed. A time beyond the year 290000
-- stays as it is: one row whose time is infinite, or too large to add to, must not fail a whole read.
CREATE FUNCTION postroom_instant(instant timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE
AS $body$
    SELECT $1 + CASE WHEN $1 < '290000-01-01' THEN interval '946684800 s' ELSE interval '0 s' END
$body$;

-- Reads the events that may be sent now: the first event of each lane, then the oldest of the rest, in the order of writing.
--   in_owner, in_tokens   a lane that is not held with its token returns no rows; without an owner this is not checked
--   in_floors, in_epoch   where to begin in each lane, see postroom_floors; null: at its lowest entry
--   in_bytes              the answer ends before the first event that does not fit, but holds at least one
--   in_exclude            keys to leave out
-- Instants go through postroom_instant.
CREATE FUNCTION postroom_read(
    in_stream text, in_lanes smallint[], in_owner text, in_tokens bigint[], in_floors bigint[],
    in_epoch bigint[], in_per_lane integer, in_rows integer, in_bytes bigint, in_exclude bytea[])
RETURNS TABLE (
    seq bigint, id text, stream text, lane smallint, key_hash bytea, type text, topic text, key text,
    aggregate_type text, aggregate_id text, payload bytea, content_type text, headers text,
    correlation_id text, causation_path text, schema_version integer, kseq bigint,
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
    o.causation_path, o.schema_version, o.kseq,
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

-- Ends events behind the fence. Returns the lanes that were held and, if any was not there to be ended, the numbers
-- that were not. From the check of the lease rows to the commit they are locked, and a relay that takes a lane must wait.
--   in_seqs, in_ids   ascending and without repeats; a row is changed only if both its number and its id are these.
--                     After a fail-over to a replica that lagged a number may belong to another event. The id is found
--                     by a binary search: comparing each row with all ids took four times as long.
CREATE FUNCTION postroom_settle(
    in_stream text, in_owner text, in_lanes smallint[], in_tokens bigint[], in_seqs bigint[], in_ids text[],
    in_keep boolean, OUT held smallint[], OUT unchanged bigint[])
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
            next_attempt_at = NULL, lease_owner = NULL, lease_until = NULL
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

-- Moves waiting events that are due into the index of ready ones. Returns how many were moved, when the next one is due,
-- whether anything is ready, and the lowest number that was moved in each lane. Every lane with due events gets an equal
-- part of the limit. A lane whose lease row is locked is left out: it must not hold up the others.
--   in_owners, in_tokens   the lane's owner, as far as the caller knows. In a lane of another owner nothing is
--                          moved: its owner would not learn of it, and reads from a floor upwards
CREATE FUNCTION postroom_stage(
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
                ORDER BY d.next_attempt_at LIMIT ceil(in_limit::float8 / busy)) AS w
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

-- Renews leases that are held by these tokens, and returns lane and token of each. Never waits for a lock: a lane whose
-- row is locked is left out, and the caller tries it again. One statement, so that no connection can die half-way with
-- the rows locked.
--   in_step   0 renews; 1 gives a new token, after which nothing under the old one can be settled (L5), except
--             where an event was replayed within the last in_doubt seconds
CREATE FUNCTION postroom_renew(
    in_stream text, in_owner text, in_lanes smallint[], in_tokens bigint[], in_seconds double precision,
    in_step integer, in_doubt double precision)
RETURNS TABLE (lane smallint, token bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan
AS $body$
#variable_conflict use_column
DECLARE locked smallint[];
BEGIN
WITH free AS MATERIALIZED (
    SELECT f.lane FROM postroom_lease AS f
    WHERE f.stream = in_stream AND f.lane = ANY (in_lanes) AND f.owner = in_owner
      AND f.token = in_tokens[array_position(in_lanes, f.lane)]
      AND (in_step = 0 OR f.replayed_at < clock_timestamp() - in_doubt * interval '1 second')
    ORDER BY f.lane FOR NO KEY UPDATE SKIP LOCKED)
SELECT array_agg(f.lane) INTO locked FROM free AS f;
RETURN QUERY
UPDATE postroom_lease AS f
SET until = clock_timestamp() + in_seconds * interval '1 second', length = abs(in_seconds) * interval '1 second',
    token = f.token + in_step, replayed = CASE WHEN in_step = 0 THEN f.replayed END
WHERE f.stream = in_stream AND f.lane = ANY (locked)
RETURNING f.lane, f.token;
END $body$;
