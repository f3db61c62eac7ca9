-- What consumers of brokers know: who they are, how far each sequence is, what waits and what failed.
-- The ledgers of keys are made by the next migration.

CREATE TABLE onefold.consumers (
    consumer      text COLLATE "C" PRIMARY KEY,
    id            integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    ledger        text NOT NULL CHECK (ledger IN ('any', 'time')),
    ordering      text NOT NULL CHECK (ordering IN ('delta', 'snapshot', 'unordered')),
    retention     interval NOT NULL CHECK (retention > interval '0'),
    gap_report    interval NOT NULL,
    gap_deadline  interval NOT NULL,
    read_model    text,
    category      text,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Version and lifecycle state that a consumer has applied last, by sequence.
CREATE TABLE onefold.sequences (
    consumer   integer NOT NULL,
    sequence   text COLLATE "C" NOT NULL,
    version    bigint NOT NULL DEFAULT 0,
    state      text,
    parked     integer NOT NULL DEFAULT 0 CHECK (parked >= 0),
    PRIMARY KEY (consumer, sequence)
) WITH (fillfactor = 70);

-- Messages that came before their turn, with all that is needed to apply them later.
CREATE TABLE onefold.parked (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer     integer NOT NULL,
    sequence     text COLLATE "C" NOT NULL,
    version      bigint,
    key          uuid NOT NULL,
    fingerprint  uuid NOT NULL,
    message_id   text NOT NULL,
    type         text NOT NULL,
    reason       text NOT NULL,
    body         bytea NOT NULL,
    headers      jsonb NOT NULL,
    place        text NOT NULL,
    published_at timestamptz,
    parked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    reported_at  timestamptz,
    attempts     integer NOT NULL DEFAULT 0,
    due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    error        text
);
CREATE INDEX parked_in_order ON onefold.parked (consumer, sequence, version, id);
CREATE INDEX parked_by_age ON onefold.parked (consumer, parked_at);

-- Messages that failed for good. A resolved one stays, as the record of what was done about it.
CREATE TABLE onefold.dead_letters (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer     integer NOT NULL,
    sequence     text COLLATE "C",
    version      bigint,
    outcome      text NOT NULL CHECK (outcome IN ('dead_lettered', 'rejected', 'key_conflict', 'expired')),
    cause        text NOT NULL,
    attempts     integer NOT NULL DEFAULT 0,
    key          uuid,
    fingerprint  uuid,
    key_text     text,
    message_id   text,
    type         text,
    body         bytea NOT NULL,
    headers      jsonb NOT NULL,
    place        text NOT NULL,
    published_at timestamptz,
    first_seen   timestamptz NOT NULL,
    dead_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at  timestamptz,
    resolution   text CHECK (resolution IN ('applied', 'duplicate', 'stale', 'parked', 'discarded')),
    resolved_by  text,
    -- What tells one dead letter from another: a redelivery whose acknowledgement was lost adds none.
    identity     uuid NOT NULL,
    CHECK ((resolved_at IS NULL) = (resolution IS NULL)),
    UNIQUE (consumer, identity)
);
CREATE INDEX dead_letters_open ON onefold.dead_letters (consumer, sequence, version, id) WHERE resolved_at IS NULL;

-- Failed tries of messages that are not decided yet: failures of their effect, and processes that ended while they had
-- the message in hand, alone or among others.
CREATE TABLE onefold.attempts (
    consumer   integer NOT NULL,
    key        uuid NOT NULL,
    attempts   integer NOT NULL DEFAULT 0,
    alone      integer NOT NULL DEFAULT 0,
    among      integer NOT NULL DEFAULT 0,
    error      text NOT NULL,
    first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, key)
);

-- What each worker has in hand, written before it starts: a message that kills its process leaves its mark here.
-- Its session holds an advisory lock on the number, so a row whose lock is free was left by a dead worker.
-- A crash of the server is no message's fault, so the table need not outlive it.
CREATE SEQUENCE onefold.worker_numbers AS integer CYCLE;
CREATE UNLOGGED TABLE onefold.in_hand (
    worker   integer PRIMARY KEY,
    consumer integer NOT NULL,
    keys     uuid[] NOT NULL,
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- True, inside of a transaction only, from before its first function until what was decided is written.
    open     boolean NOT NULL DEFAULT false
) WITH (fillfactor = 30);

-- A function that commits would commit the keys of other messages without their effects: its commit is refused.
CREATE FUNCTION onefold.refuse_early_commit() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM onefold.in_hand h WHERE h.worker = NEW.worker AND h.open) THEN
        RAISE EXCEPTION 'commit by a function, before what was decided is written' USING ERRCODE = 'OF004';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER refuse_early_commit AFTER INSERT OR UPDATE ON onefold.in_hand
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.open) EXECUTE FUNCTION onefold.refuse_early_commit();

-- Exact counts of outcomes, in a few slots so that workers do not wait for each other.
CREATE TABLE onefold.outcomes (
    consumer integer NOT NULL,
    outcome  text NOT NULL,
    slot     integer NOT NULL,
    count    bigint NOT NULL,
    last_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, outcome, slot)
) WITH (fillfactor = 30);

-- What each running worker says of itself, a few times a minute.
CREATE TABLE onefold.consumer_workers (
    worker       text PRIMARY KEY,
    consumer     integer NOT NULL,
    broker       text NOT NULL,
    backlog      bigint,
    in_flight    integer NOT NULL,
    newest       timestamptz,
    claim_ms     double precision,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
