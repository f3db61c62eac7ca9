-- Idempotency keys of HTTP requests, with the responses they gave.

-- The services whose requests are claimed here, and for how long each promises to remember a key.
CREATE TABLE onefold.http_services (
    service       text COLLATE "C" PRIMARY KEY,
    retention     interval NOT NULL CHECK (retention > interval '0'),
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Keys that are leased to a request at work; a row goes when its response is kept, or when none is to be.
CREATE TABLE onefold.http_claims (
    key         uuid PRIMARY KEY,
    fingerprint uuid NOT NULL,
    token       uuid NOT NULL,
    claimed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Responses, by generation. A row is inserted once and never changed; it goes with its partition.
CREATE TABLE onefold.http_responses (
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation  integer NOT NULL,
    status      smallint NOT NULL,
    key         uuid NOT NULL,
    fingerprint uuid NOT NULL,
    headers     jsonb NOT NULL,
    body        bytea NOT NULL,
    PRIMARY KEY (key, generation)
) PARTITION BY LIST (generation);
CREATE TRIGGER refuse_ledger_change BEFORE UPDATE OR DELETE OR TRUNCATE ON onefold.http_responses
    FOR EACH STATEMENT EXECUTE FUNCTION onefold.refuse_ledger_change();

-- Every generation that was ever made. One takes new responses; a retired one is detached, and dropped.
CREATE TABLE onefold.http_generations (
    name       text COLLATE "C" PRIMARY KEY,
    generation integer NOT NULL UNIQUE,
    starts_at  timestamptz NOT NULL,
    ends_at    timestamptz,
    retired_at timestamptz,
    CHECK (ends_at IS NOT NULL OR retired_at IS NULL)
);
CREATE UNIQUE INDEX http_active_generation ON onefold.http_generations ((ends_at IS NULL)) WHERE ends_at IS NULL;

-- Claims a key for a request, or says what stands in its way:
--   claimed  it is the caller's, to the end of the transaction, or for `lease` seconds under `in_token`
--   busy     another request has it in hand
--   done     there is a response
-- Nothing waits: who holds a key has its advisory lock to the end of the transaction in which it was claimed, and
-- whoever gets that lock sees all that was committed before, because each statement here has a snapshot of its own.
CREATE FUNCTION onefold.http_claim(
    in_key uuid, in_fingerprint uuid, in_token uuid, lease double precision
) RETURNS TABLE (
    state text, fingerprint uuid, status smallint, headers jsonb, body bytea, recorded_at timestamptz
)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    held record;
    leased boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'claim in isolation level %', current_setting('transaction_isolation') USING ERRCODE = 'OF003';
    END IF;
    IF NOT pg_try_advisory_xact_lock(('x' || left(replace(in_key::text, '-', ''), 16))::bit(64)::bigint) THEN
        RETURN QUERY SELECT 'busy', NULL::uuid, NULL::smallint, NULL::jsonb, NULL::bytea, NULL::timestamptz;
        RETURN;
    END IF;
    -- One that is being completed just now is waited for.
    SELECT c.fingerprint, c.token, c.expires_at INTO held FROM onefold.http_claims c WHERE c.key = in_key FOR UPDATE;
    leased := FOUND;
    IF leased AND held.expires_at > clock_timestamp() AND held.token IS DISTINCT FROM in_token THEN
        RETURN QUERY
            SELECT 'busy', held.fingerprint, NULL::smallint, NULL::jsonb, NULL::bytea, NULL::timestamptz;
        RETURN;
    END IF;
    RETURN QUERY
        SELECT 'done', r.fingerprint, r.status, r.headers, r.body, r.recorded_at FROM onefold.http_responses r
        WHERE r.key = in_key ORDER BY r.generation DESC LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    IF lease IS NOT NULL THEN
        INSERT INTO onefold.http_claims AS c (key, fingerprint, token, expires_at)
        VALUES (in_key, in_fingerprint, in_token, clock_timestamp() + make_interval(secs => lease))
        ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, token = excluded.token,
            claimed_at = clock_timestamp(), expires_at = excluded.expires_at;
    ELSE
        IF leased THEN
            DELETE FROM onefold.http_claims c WHERE c.key = in_key;
        END IF;
        -- A server that was killed lets go of its keys within a second, whatever its statement waits for.
        PERFORM set_config('client_connection_check_interval', '1s', true);
    END IF;
    RETURN QUERY SELECT 'claimed', NULL::uuid, NULL::smallint, NULL::jsonb, NULL::bytea, NULL::timestamptz;
END
$$;

-- Keeps the response to a request whose key the caller has claimed: in this transaction, or under `in_token`. Raises
-- OF005 when the lease was taken over.
CREATE FUNCTION onefold.http_keep(
    in_key uuid, in_fingerprint uuid, in_token uuid, in_status smallint, in_headers jsonb, in_body bytea
) RETURNS timestamptz
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET lock_timeout = '1s' AS $$
DECLARE
    at timestamptz;
BEGIN
    IF in_token IS NOT NULL THEN
        DELETE FROM onefold.http_claims WHERE key = in_key AND token = in_token;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the lease of the key was taken over' USING ERRCODE = 'OF005';
        END IF;
    END IF;
    INSERT INTO onefold.http_responses (generation, status, key, fingerprint, headers, body)
    SELECT generation, in_status, in_key, in_fingerprint, in_headers, in_body
    FROM onefold.http_generations WHERE ends_at IS NULL
    RETURNING recorded_at INTO at;
    RETURN at;
END
$$;

DO $$
BEGIN
    PERFORM onefold.make_ledger_partition('http_responses', 'http_responses_1', 'IN (1)');
    INSERT INTO onefold.http_generations (name, generation, starts_at)
    VALUES ('http_responses_1', 1, clock_timestamp());
END
$$;
