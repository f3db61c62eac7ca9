-- Seals: closed ranges of the log under Merkle roots, by which a later change is found.

CREATE FUNCTION onefold.refuse_seal_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on %.% is refused: seals and hashes are append-only', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;

-- What is said of each range: columns up to sealed_at are the statement that is hashed and signed.
CREATE TABLE onefold.seals (
    log            text COLLATE "C" NOT NULL,
    number         bigint NOT NULL CHECK (number > 0),
    first_position bigint NOT NULL,
    last_position  bigint NOT NULL,
    events         integer NOT NULL CHECK (events > 0),
    size           bigint NOT NULL CHECK (size >= events),
    root           bytea NOT NULL CHECK (octet_length(root) = 32),
    marks_hash     bytea NOT NULL CHECK (octet_length(marks_hash) = 32),
    previous       bytea NOT NULL CHECK (octet_length(previous) = 32),
    sealed_at      timestamptz NOT NULL,
    hash           bytea NOT NULL CHECK (octet_length(hash) = 32),
    public_key     bytea CHECK (octet_length(public_key) = 32),
    signature      bytea CHECK (octet_length(signature) = 64),
    -- The roots of the perfect trees of `size` leaves, the largest first.
    peaks          bytea NOT NULL,
    -- For each event its position and the beginning of its content's hash, 8 bytes each.
    marks          bytea NOT NULL,
    PRIMARY KEY (log, number),
    UNIQUE (log, last_position),
    CHECK (last_position >= first_position),
    CHECK ((public_key IS NULL) = (signature IS NULL))
);
ALTER TABLE onefold.seals ALTER COLUMN marks SET STORAGE EXTERNAL;
CREATE TRIGGER refuse_seal_change BEFORE UPDATE OR DELETE OR TRUNCATE ON onefold.seals
    FOR EACH STATEMENT EXECUTE FUNCTION onefold.refuse_seal_change();
ALTER TABLE onefold.seals ENABLE ALWAYS TRIGGER refuse_seal_change;

-- Makes the table of a log's hashes, unless it is there.
CREATE FUNCTION onefold.create_hashes(log text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    hashes text := format('onefold.%I', log || '_hashes');
BEGIN
    IF to_regclass(hashes) IS NOT NULL THEN
        RETURN;
    END IF;
    -- `previous` is the position of the stream's previous event. Stream and version tell what was removed, `checks` (a
    -- CRC-32 for each column of the log) which column was altered.
    EXECUTE format($ddl$
        CREATE TABLE %s (
            position bigint PRIMARY KEY,
            previous bigint,
            version  bigint NOT NULL,
            stream   text COLLATE "C" NOT NULL,
            hash     bytea NOT NULL CHECK (octet_length(hash) = 32),
            checks   bytea NOT NULL
        ) WITH (autovacuum_vacuum_insert_scale_factor = 0.05)
    $ddl$, hashes);
    EXECUTE format('CREATE TRIGGER refuse_seal_change BEFORE UPDATE OR DELETE OR TRUNCATE ON %s'
        ' FOR EACH STATEMENT EXECUTE FUNCTION onefold.refuse_seal_change()', hashes);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER refuse_seal_change', hashes);
END
$$;

SELECT onefold.create_hashes('events');
