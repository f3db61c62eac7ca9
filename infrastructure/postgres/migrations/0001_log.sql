-- The log and what guards it. A log is one table; onefold.create_log makes another of the same kind.

CREATE SCHEMA IF NOT EXISTS onefold;
CREATE SCHEMA IF NOT EXISTS read;

-- Key of the advisory lock that every append to a log holds, shared, from before it draws positions to its end.
-- High half: "OF" and a number for the purpose; low half: the table's oid.
CREATE FUNCTION onefold.append_lock_key(log regclass) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (x'4f460001'::bigint << 32) | log::oid::bigint;

CREATE FUNCTION onefold.before_append() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(onefold.append_lock_key(TG_RELID::regclass));
    RETURN NULL;
END
$$;

CREATE FUNCTION onefold.refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on %.% is refused: the log is append-only', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE FUNCTION onefold.create_log(in_schema text, name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    log text := format('%I.%I', in_schema, name);
    check_holes text := format('%I.%I', in_schema, name || '_after_append');
BEGIN
    EXECUTE format($ddl$
        CREATE TABLE %1$s (
            position       bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
            version        bigint NOT NULL CHECK (version >= 0),
            occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
            recorded_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
            event_id       uuid NOT NULL UNIQUE,
            schema_version integer NOT NULL DEFAULT 1,
            stream         text COLLATE "C" NOT NULL CHECK (stream <> ''),
            type           text COLLATE "C" NOT NULL,
            data           jsonb,
            raw            bytea,
            metadata       jsonb,
            UNIQUE (stream, version),
            CHECK ((data IS NULL) <> (raw IS NULL))
        ) WITH (autovacuum_vacuum_insert_scale_factor = 0.05)
    $ddl$, log);
    EXECUTE format('CREATE TRIGGER before_append BEFORE INSERT ON %s'
        ' FOR EACH STATEMENT EXECUTE FUNCTION onefold.before_append()', log);
    -- The unique key refuses forks, this refuses holes: a version follows one that is committed or comes with it, and
    -- that stands before it in the log.
    -- A function of its own for each log, so that its query is planned once a session.
    EXECUTE format($ddl$
        CREATE FUNCTION %2$s() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $check$
        DECLARE
            gap record;
        BEGIN
            SELECT a.stream, a.version INTO gap FROM appended a
            WHERE a.version > 1 AND (
                SELECT l.position < a.position FROM %1$s l WHERE l.stream = a.stream AND l.version = a.version - 1
            ) IS NOT TRUE
            LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION 'hole in stream %%: version %% does not follow version %%',
                    gap.stream, gap.version, gap.version - 1
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'no_hole_in_stream';
            END IF;
            RETURN NULL;
        END
        $check$
    $ddl$, log, check_holes);
    EXECUTE format('CREATE TRIGGER after_append AFTER INSERT ON %s REFERENCING NEW TABLE AS appended'
        ' FOR EACH STATEMENT EXECUTE FUNCTION %s()', log, check_holes);
    EXECUTE format('CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON %s'
        ' FOR EACH STATEMENT EXECUTE FUNCTION onefold.refuse_change()', log);
    EXECUTE format('ALTER TABLE %1$s ENABLE ALWAYS TRIGGER before_append,'
        ' ENABLE ALWAYS TRIGGER after_append, ENABLE ALWAYS TRIGGER refuse_change', log);
END
$$;

SELECT onefold.create_log('onefold', 'events');

-- The last snapshot of a stream; disposable, and ignored when its fingerprint is not that of the code.
CREATE TABLE onefold.snapshots (
    log         text COLLATE "C" NOT NULL,
    stream      text COLLATE "C" NOT NULL,
    version     bigint NOT NULL,
    fingerprint text NOT NULL,
    state       jsonb NOT NULL,
    taken_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (log, stream)
);

-- How far a projection is, and who may move it. The position moves by compare-and-set together with the read model.
CREATE TABLE onefold.checkpoints (
    projection  text COLLATE "C" NOT NULL,
    segment     integer NOT NULL DEFAULT 0,
    log         text COLLATE "C" NOT NULL DEFAULT 'onefold.events',
    position    bigint NOT NULL DEFAULT 0,
    fingerprint text NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    token       bigint NOT NULL DEFAULT 0,
    owner       text,
    backend_pid integer,
    expires_at  timestamptz,
    attempts    integer NOT NULL DEFAULT 0,
    failure     jsonb,
    PRIMARY KEY (projection, segment)
) WITH (fillfactor = 50);

-- Moves a checkpoint, or raises OF001 when it is no longer where its worker has left it. Called first in the
-- statement or transaction that writes the read model, so that a worker that was replaced changes nothing.
CREATE FUNCTION onefold.move_checkpoint(
    in_projection text, in_segment integer, expected bigint, in_token bigint, upto bigint, lease double precision
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE onefold.checkpoints
    SET position = upto, updated_at = clock_timestamp(), attempts = 0, failure = NULL,
        expires_at = clock_timestamp() + make_interval(secs => lease)
    WHERE projection = in_projection AND segment = in_segment AND position = expected AND token = in_token
        AND upto >= expected;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'projection % was taken over', in_projection USING ERRCODE = 'OF001';
    END IF;
END
$$;
