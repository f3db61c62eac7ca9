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
