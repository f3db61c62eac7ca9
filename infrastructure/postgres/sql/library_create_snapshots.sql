CREATE TABLE {table} (
    stream   text COLLATE "C" NOT NULL CHECK (stream <> ''),
    version  bigint NOT NULL,
    type     text COLLATE "C" NOT NULL,
    data     jsonb,
    raw      bytea,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (stream, version),
    CHECK ((data IS NULL) <> (raw IS NULL))
)
