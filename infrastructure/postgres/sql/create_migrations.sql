CREATE SCHEMA IF NOT EXISTS onefold;

CREATE TABLE IF NOT EXISTS onefold.migrations (
    number integer PRIMARY KEY CHECK (number > 0),
    name text NOT NULL,
    sha256 text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{{64}}$'),
    applied_at timestamptz NOT NULL DEFAULT now()
)
