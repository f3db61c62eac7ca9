-- Effects: calls to the world outside, written with the state change that asks for them.

-- A task is due (or leased until it is due again), done, or dead. It holds what its function is called with: a stored
-- event with its place, or data alone. `call` is the key that the world outside gets with every try.
CREATE TABLE onefold.effects (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    effect         text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL,
    call           uuid NOT NULL,
    type           text COLLATE "C",
    schema_version integer,
    data           jsonb NOT NULL,
    stream         text COLLATE "C",
    version        bigint,
    position       bigint,
    event_id       uuid,
    occurred_at    timestamptz,
    recorded_at    timestamptz,
    metadata       jsonb,
    asked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts       integer NOT NULL DEFAULT 0,
    first_try_at   timestamptz,
    -- Drawn anew by every claim: what an older claim has to say is not heard.
    token          bigint NOT NULL DEFAULT 0,
    owner          text,
    due_at         timestamptz,
    done_at        timestamptz,
    result         jsonb,
    dead_at        timestamptz,
    outcome        text COLLATE "C" CHECK (outcome IN ('dead_lettered', 'rejected', 'expired', 'key_conflict')),
    error          text,
    resolution     text COLLATE "C",
    resolved_by    text,
    -- From when on the task may be removed; null while it is open.
    remove_at      timestamptz,
    CHECK (num_nonnulls(due_at, done_at, dead_at) = 1),
    CHECK ((type IS NULL) = (schema_version IS NULL)),
    CHECK ((dead_at IS NULL) = (outcome IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX effects_by_call ON onefold.effects (call) WHERE outcome IS DISTINCT FROM 'key_conflict';
CREATE INDEX effects_due ON onefold.effects (effect, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX effects_dead ON onefold.effects (effect, id) WHERE dead_at IS NOT NULL;
CREATE INDEX effects_to_remove ON onefold.effects (remove_at) WHERE remove_at IS NOT NULL;

-- The keys that were given by hand, each with what it stood for. They outlive their tasks: a key that comes again after
-- years is still known. The id of an event, or one that was drawn, needs no row here: it never comes again.
CREATE TABLE onefold.effect_keys (
    call        uuid PRIMARY KEY,
    fingerprint uuid NOT NULL
);
