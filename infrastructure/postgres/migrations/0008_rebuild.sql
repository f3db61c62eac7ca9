-- Rebuilds beside the serving read model.

-- A read model that is being built, and the version that served before, until it is dropped. A table goes from one
-- schema to the next with its indexes and constraints, which keep their names.
CREATE SCHEMA IF NOT EXISTS read_next;
CREATE SCHEMA IF NOT EXISTS read_before;

-- In onefold.checkpoints the serving version has segments from 0 on, the next one segment -1, the one before -2.

-- Rebuilds that are under way, or were broken off.
CREATE TABLE onefold.rebuilds (
    projection  text COLLATE "C" PRIMARY KEY,
    fingerprint text NOT NULL,
    phase       text NOT NULL DEFAULT 'load' CHECK (phase IN ('load', 'finish', 'follow')),
    -- Up to here the log is loaded in bulk; what comes after it is applied in the order of the log.
    upto        bigint NOT NULL DEFAULT 0,
    -- Events that the bulk holds.
    total       bigint NOT NULL DEFAULT 0,
    failure     text,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Ranges of streams of the bulk: those before from_stream are loaded, those from before_stream on belong to the next part.
CREATE TABLE onefold.rebuild_parts (
    projection    text COLLATE "C" NOT NULL REFERENCES onefold.rebuilds ON DELETE CASCADE,
    part          integer NOT NULL,
    from_stream   text COLLATE "C" NOT NULL,
    before_stream text COLLATE "C" NOT NULL,
    events        bigint NOT NULL DEFAULT 0,
    done          boolean NOT NULL DEFAULT false,
    PRIMARY KEY (projection, part)
);

-- Puts the version of a projection in `read_next` (segment -1) or `read_before` (-2) in place of the serving one, tables
-- and checkpoints, and keeps the serving one in `read_before`. Raises OF001 when the version is no longer held by those
-- who ask, OF005 when the serving one is not, or is ahead of the version though `behind` is false. No lock is waited for longer
-- than `lock_ms` in all: those who come after it wait no longer for this.
CREATE FUNCTION onefold.exchange_read_model(
    in_projection text, coming integer, serving_owner text, coming_owner text, behind boolean, lock_ms integer
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    began timestamptz := clock_timestamp();
    serving regclass := to_regclass(format('read.%I', in_projection));
    source text := CASE coming WHEN -1 THEN 'read_next' ELSE 'read_before' END;
    arriving onefold.checkpoints;
    leaving onefold.checkpoints;
    reached bigint;
    made record;
    views text[] := '{}';
BEGIN
    -- Views before the table, as those who read them lock them; in a view of the table nothing but its own lock is wanted.
    FOR made IN
        SELECT v.oid, v.relname, n.nspname, pg_get_userbyid(v.relowner) AS owner, v.reloptions
        FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
        WHERE v.relkind = 'v' AND v.oid IN (
            SELECT r.ev_class FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
            WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = serving
        )
        ORDER BY v.oid
    LOOP
        PERFORM set_config('lock_timeout', onefold.left_of(began, lock_ms), true);
        EXECUTE format('ALTER VIEW %I.%I OWNER TO %I', made.nspname, made.relname, made.owner);
        views := views || format(
            'CREATE OR REPLACE VIEW %I.%I%s AS %s', made.nspname, made.relname,
            coalesce(' WITH (' || array_to_string(made.reloptions, ', ') || ')', ''), pg_get_viewdef(made.oid)
        );
    END LOOP;
    PERFORM set_config('lock_timeout', onefold.left_of(began, lock_ms), true);
    IF serving IS NOT NULL THEN
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', serving);
    END IF;
    -- The table before the checkpoint, as a worker's statement takes them.
    PERFORM set_config('lock_timeout', onefold.left_of(began, lock_ms), true);
    PERFORM FROM onefold.checkpoints WHERE projection = in_projection ORDER BY segment FOR UPDATE;
    SELECT * INTO arriving FROM onefold.checkpoints WHERE projection = in_projection AND segment = coming;
    IF NOT FOUND OR arriving.owner IS DISTINCT FROM coming_owner THEN
        RAISE EXCEPTION 'projection % was taken over', in_projection USING ERRCODE = 'OF001';
    END IF;
    IF EXISTS (
        SELECT FROM onefold.checkpoints
        WHERE projection = in_projection AND segment >= 0 AND owner IS DISTINCT FROM serving_owner
    ) THEN
        RAISE EXCEPTION 'projection % moves on', in_projection USING ERRCODE = 'OF005';
    END IF;
    SELECT max(position) INTO reached FROM onefold.checkpoints WHERE projection = in_projection AND segment >= 0;
    IF arriving.position < reached AND NOT behind THEN
        RAISE EXCEPTION 'projection %: position % is behind %', in_projection, arriving.position, reached
            USING ERRCODE = 'OF005';
    END IF;
    SELECT * INTO leaving FROM onefold.checkpoints
    WHERE projection = in_projection AND segment >= 0 ORDER BY position, segment LIMIT 1;

    IF coming = -1 THEN
        EXECUTE format('DROP TABLE IF EXISTS read_before.%I', in_projection);
        IF serving IS NOT NULL THEN
            EXECUTE format('ALTER TABLE read.%I SET SCHEMA read_before', in_projection);
        END IF;
    ELSIF serving IS NOT NULL THEN
        EXECUTE format('ALTER TABLE read.%I SET SCHEMA read_next', in_projection);
    END IF;
    EXECUTE format('ALTER TABLE %I.%I SET SCHEMA read', source, in_projection);
    IF coming = -2 AND serving IS NOT NULL THEN
        EXECUTE format('ALTER TABLE read_next.%I SET SCHEMA read_before', in_projection);
    END IF;
    FOR i IN 1 .. cardinality(views) LOOP
        EXECUTE views[i];
    END LOOP;

    DELETE FROM onefold.checkpoints WHERE projection = in_projection AND segment < 0;
    INSERT INTO onefold.checkpoints (projection, segment, log, position, fingerprint, updated_at, token, attempts, failure)
    VALUES (in_projection, -2, leaving.log, leaving.position, leaving.fingerprint, leaving.updated_at,
        greatest(leaving.token, arriving.token) + 1, leaving.attempts, leaving.failure);
    UPDATE onefold.checkpoints
    SET log = arriving.log, position = arriving.position, fingerprint = arriving.fingerprint, updated_at = clock_timestamp(),
        token = greatest(token, arriving.token) + 1, owner = NULL, backend_pid = NULL, expires_at = NULL,
        attempts = arriving.attempts, failure = arriving.failure
    WHERE projection = in_projection AND segment >= 0;
    DELETE FROM onefold.rebuilds WHERE projection = in_projection;
END
$$;

-- What is left of a time in milliseconds that began at an instant, as a setting; never 0, which would be for ever.
CREATE FUNCTION onefold.left_of(began timestamptz, ms integer) RETURNS text
LANGUAGE sql VOLATILE
RETURN greatest(1, ms - floor(extract(epoch FROM clock_timestamp() - began) * 1000)::integer) || 'ms';
