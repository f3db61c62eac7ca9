-- Outbox: messages written with the state change that they tell of, for relays to publish.

-- Append-only but for the removal of what every relay of its channel has published. Like the log it is read in order
-- without skipping what commits late: a writer holds the table's lock, shared, from before it draws a position.
CREATE TABLE onefold.outbox (
    position   bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    channel    text COLLATE "C" NOT NULL,
    -- What the order is kept by, null where there is none to keep; its slot shares the channel out among relays.
    key        text COLLATE "C",
    slot       smallint NOT NULL CHECK (slot BETWEEN 0 AND 63),
    id         text NOT NULL,
    type       text COLLATE "C" NOT NULL,
    body       bytea NOT NULL,
    headers    jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX outbox_of_channel ON onefold.outbox (channel, position);
CREATE TRIGGER before_append BEFORE INSERT ON onefold.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION onefold.before_append();

CREATE FUNCTION onefold.refuse_outbox_update() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on onefold.outbox is refused: a message goes out as it was written', TG_OP
        USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER refuse_update BEFORE UPDATE ON onefold.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION onefold.refuse_outbox_update();

-- The last number given to a message of a key, for those that are numbered without a hole.
CREATE TABLE onefold.outbox_numbers (
    channel text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    last    bigint NOT NULL,
    PRIMARY KEY (channel, key)
) WITH (fillfactor = 70);

-- How far each relay has published its channel, by segment, and who may move it: as onefold.checkpoints.
CREATE TABLE onefold.relays (
    relay      text COLLATE "C" NOT NULL,
    segment    smallint NOT NULL,
    segments   smallint NOT NULL CHECK (segments BETWEEN 1 AND 64),
    channel    text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL CHECK (source IN ('outbox', 'log')),
    position   bigint NOT NULL,
    published  bigint NOT NULL DEFAULT 0,
    token      bigint NOT NULL DEFAULT 0,
    owner      text,
    expires_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (segment >= 0 AND segment < segments),
    PRIMARY KEY (relay, segment)
) WITH (fillfactor = 50);

-- The processes of a relay that are alive, among which its segments are shared out.
CREATE TABLE onefold.relay_members (
    relay   text COLLATE "C" NOT NULL,
    owner   text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (relay, owner)
) WITH (fillfactor = 50);

-- Messages that the broker refused for good, and those of the same key that wait behind them, as they are to go out.
-- The first of a key is the one that was refused; when it was published or discarded the next one follows.
CREATE TABLE onefold.held_messages (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relay      text COLLATE "C" NOT NULL,
    segment    smallint NOT NULL,
    position   bigint NOT NULL,
    -- What it waits by; `keyed` says whether the broker gets it as the key too.
    key        text COLLATE "C" NOT NULL,
    keyed      boolean NOT NULL,
    message_id text NOT NULL,
    type       text COLLATE "C" NOT NULL,
    body       bytea NOT NULL,
    headers    jsonb NOT NULL,
    held_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Why it was refused, how often, and when somebody asked for another try; cause is null where it only waits.
    cause      text,
    attempts   integer NOT NULL DEFAULT 0,
    asked_at   timestamptz,
    resolved_at timestamptz,
    resolution text CHECK (resolution IN ('published', 'discarded')),
    resolved_by text,
    CHECK ((resolved_at IS NULL) = (resolution IS NULL)),
    UNIQUE (relay, position)
);
CREATE INDEX held_messages_open ON onefold.held_messages (relay, segment, key, position) WHERE resolved_at IS NULL;
