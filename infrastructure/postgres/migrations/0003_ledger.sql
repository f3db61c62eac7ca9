-- The ledgers: which keys each consumer has claimed. A row is inserted once and never changed; it goes with its
-- partition.

CREATE FUNCTION onefold.refuse_ledger_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on %.% is refused: a key is forgotten only when its partition is dropped', TG_OP,
        TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;

-- Keys of any kind, by generation. One generation takes new keys; those before it are sealed.
CREATE TABLE onefold.ledger (
    first_seen  timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation  integer NOT NULL,
    consumer    integer NOT NULL,
    key         uuid NOT NULL,
    fingerprint uuid NOT NULL,
    PRIMARY KEY (consumer, key, generation)
) PARTITION BY LIST (generation);

-- Keys that are UUIDv7, by the time in them.
CREATE TABLE onefold.ledger_by_time (
    first_seen  timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumer    integer NOT NULL,
    key         uuid NOT NULL,
    fingerprint uuid NOT NULL,
    PRIMARY KEY (consumer, key)
) PARTITION BY RANGE (key);

CREATE TRIGGER refuse_ledger_change BEFORE UPDATE OR DELETE OR TRUNCATE ON onefold.ledger
    FOR EACH STATEMENT EXECUTE FUNCTION onefold.refuse_ledger_change();
CREATE TRIGGER refuse_ledger_change BEFORE UPDATE OR DELETE OR TRUNCATE ON onefold.ledger_by_time
    FOR EACH STATEMENT EXECUTE FUNCTION onefold.refuse_ledger_change();

-- Every partition that was ever made. A generation ends when it is sealed. Once a partition is retired its keys count
-- as forgotten; only then is it detached, and dropped.
CREATE TABLE onefold.ledger_partitions (
    name       text COLLATE "C" PRIMARY KEY,
    ledger     text NOT NULL CHECK (ledger IN ('any', 'time')),
    generation integer UNIQUE,
    starts_at  timestamptz,
    ends_at    timestamptz,
    retired_at timestamptz,
    CHECK ((ledger = 'any') = (generation IS NOT NULL)),
    CHECK (ends_at IS NOT NULL OR (ledger = 'any' AND retired_at IS NULL))
);
CREATE UNIQUE INDEX ledger_active_generation ON onefold.ledger_partitions (ledger) WHERE ends_at IS NULL;
CREATE INDEX ledger_partitions_by_end ON onefold.ledger_partitions (ledger, ends_at);
CREATE INDEX ledger_floor ON onefold.ledger_partitions (ledger, ends_at) WHERE retired_at IS NOT NULL;

-- Makes the table of a partition, which takes no lock that a claim waits for, as CREATE TABLE ... PARTITION OF would.
-- Autovacuum is off: it would stand in the way of the seal, and there is nothing for it to clean.
CREATE FUNCTION onefold.make_ledger_partition(parent text, name text, bounds text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TABLE onefold.%I (LIKE onefold.%I INCLUDING DEFAULTS INCLUDING INDEXES)'
        ' WITH (autovacuum_enabled = off)', name, parent);
    EXECUTE format('ALTER TABLE onefold.%I ATTACH PARTITION onefold.%I FOR VALUES %s', parent, name, bounds);
END
$$;

-- The least UUIDv7 of an instant.
CREATE FUNCTION onefold.ledger_bound(at timestamptz) RETURNS uuid
LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN rpad(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0'), 32, '0')::uuid;

-- Makes the partition of the keys from one instant to before another; from the beginning where `from_at` is null.
CREATE FUNCTION onefold.make_ledger_range(from_at timestamptz, to_at timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    name text := 'ledger_by_time_' || coalesce(to_char(from_at AT TIME ZONE 'UTC', 'YYYYMMDD_HH24MI'), 'first');
BEGIN
    PERFORM onefold.make_ledger_partition('ledger_by_time', name, format('FROM (%s) TO (%L)',
        coalesce(quote_literal(onefold.ledger_bound(from_at)), 'MINVALUE'), onefold.ledger_bound(to_at)));
    INSERT INTO onefold.ledger_partitions (name, ledger, starts_at, ends_at) VALUES (name, 'time', from_at, to_at);
    RETURN name;
END
$$;

-- What the ledger holds for keys, the newest generation first. As in the functions below, the settings keep one plan: a
-- table that is small, or was, must not be read through when it has grown.
CREATE FUNCTION onefold.claimed_any(in_consumer integer, in_keys uuid[])
RETURNS TABLE (key uuid, fingerprint uuid, first_seen timestamptz)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT g.key, l.fingerprint, l.first_seen FROM unnest(in_keys) AS g (key) CROSS JOIN LATERAL (
        SELECT p.fingerprint, p.first_seen FROM onefold.ledger p
        WHERE p.consumer = in_consumer AND p.key = g.key ORDER BY p.generation DESC LIMIT 1
    ) l;
END
$$;

CREATE FUNCTION onefold.claimed_by_time(in_consumer integer, in_keys uuid[])
RETURNS TABLE (key uuid, fingerprint uuid, first_seen timestamptz)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT g.key, l.fingerprint, l.first_seen FROM unnest(in_keys) AS g (key) CROSS JOIN LATERAL (
        SELECT p.fingerprint, p.first_seen FROM onefold.ledger_by_time p
        WHERE p.consumer = in_consumer AND p.key = g.key LIMIT 1
    ) l;
END
$$;

-- Claims the keys that are in no live generation. Returns those that are, and, without first_seen, those that were
-- claimed by others since the snapshot: the next statement sees them.
--
-- The active generation is read first, in a statement of its own. Every generation before it was sealed by then, so all
-- of its claims are committed and the next statement sees them, and was attached by then, so the next plan reads it.
-- Claims in the active one itself are met by its primary key. If it is sealed in between, the insert meets the seal and
-- fails: the seal is a constraint, which no snapshot hides.
-- The floor is read last, and so is never older than the generations that were looked through.
CREATE FUNCTION onefold.claim_any(
    in_consumer integer, in_keys uuid[], in_fingerprints uuid[], in_floor timestamptz
) RETURNS TABLE (key uuid, fingerprint uuid, first_seen timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    active integer;
    floor timestamptz;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'claim in isolation level %', current_setting('transaction_isolation') USING ERRCODE = 'OF003';
    END IF;
    active := (SELECT generation FROM onefold.ledger_partitions WHERE ledger = 'any' AND ends_at IS NULL);
    RETURN QUERY WITH given AS MATERIALIZED (
        SELECT g.key, g.fingerprint, l.fingerprint AS kept, l.first_seen
        FROM unnest(in_keys, in_fingerprints) AS g (key, fingerprint)
        LEFT JOIN LATERAL (
            SELECT p.fingerprint, p.first_seen FROM onefold.ledger p
            WHERE p.consumer = in_consumer AND p.key = g.key ORDER BY p.generation DESC LIMIT 1
        ) l ON true
    ), made AS (
        INSERT INTO onefold.ledger (generation, consumer, key, fingerprint)
        SELECT active, in_consumer, g.key, g.fingerprint FROM given g
        WHERE g.first_seen IS NULL ORDER BY g.key
        ON CONFLICT DO NOTHING
        RETURNING key
    )
    SELECT g.key, g.kept, g.first_seen FROM given g
    WHERE g.first_seen IS NOT NULL OR NOT EXISTS (SELECT FROM made m WHERE m.key = g.key);
    floor := (SELECT max(ends_at) FROM onefold.ledger_partitions WHERE ledger = 'any' AND retired_at IS NOT NULL);
    IF floor IS DISTINCT FROM in_floor THEN
        RAISE EXCEPTION 'the floor of the ledger is % now, not %', floor, in_floor USING ERRCODE = 'OF002';
    END IF;
END
$$;

-- Claims keys that are UUIDv7; returns those that were there. A key can be in one partition only.
CREATE FUNCTION onefold.claim_by_time(in_consumer integer, in_keys uuid[], in_fingerprints uuid[])
RETURNS TABLE (key uuid, fingerprint uuid, first_seen timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    there uuid[];
    found integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'claim in isolation level %', current_setting('transaction_isolation') USING ERRCODE = 'OF003';
    END IF;
    WITH made AS (
        INSERT INTO onefold.ledger_by_time (consumer, key, fingerprint)
        SELECT in_consumer, g.key, g.fingerprint FROM unnest(in_keys, in_fingerprints) AS g (key, fingerprint)
        ORDER BY g.key
        ON CONFLICT DO NOTHING
        RETURNING key
    )
    SELECT array_agg(g.key) INTO there FROM unnest(in_keys) AS g (key)
    WHERE NOT EXISTS (SELECT FROM made m WHERE m.key = g.key);
    IF there IS NOT NULL THEN
        -- A new snapshot sees what was committed while the insert waited.
        RETURN QUERY SELECT * FROM onefold.claimed_by_time(in_consumer, there);
        GET DIAGNOSTICS found = ROW_COUNT;
        IF found <> cardinality(there) THEN
            RAISE EXCEPTION 'keys were neither claimed nor found' USING ERRCODE = 'OF002';
        END IF;
    END IF;
END
$$;

-- The first generation, and time for two days.
DO $$
DECLARE
    today timestamptz := date_trunc('day', clock_timestamp(), 'UTC');
BEGIN
    PERFORM onefold.make_ledger_partition('ledger', 'ledger_1', 'IN (1)');
    INSERT INTO onefold.ledger_partitions (name, ledger, generation, starts_at)
    VALUES ('ledger_1', 'any', 1, clock_timestamp());
    PERFORM onefold.make_ledger_range(NULL, today + interval '24 hours');
    PERFORM onefold.make_ledger_range(today + interval '24 hours', today + interval '48 hours');
    PERFORM onefold.make_ledger_range(today + interval '48 hours', today + interval '72 hours');
END
$$;
