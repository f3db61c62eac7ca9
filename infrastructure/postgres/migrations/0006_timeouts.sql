-- The log as a source of messages, and what process managers keep beside their streams: how far each instance is, and
-- its timeouts.

-- How far a consumer has read a log, and which of its workers reads now. The position is moved under the token only.
CREATE TABLE onefold.log_subscriptions (
    consumer   text COLLATE "C" NOT NULL,
    log        text COLLATE "C" NOT NULL,
    position   bigint NOT NULL,
    token      bigint NOT NULL DEFAULT 0,
    owner      text,
    expires_at timestamptz,
    begun_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    moved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, log)
) WITH (fillfactor = 50);

-- The last event of the log that each instance of a process manager has taken: an earlier one that comes again is
-- nothing new, however long ago it was.
CREATE TABLE onefold.process_instances (
    process  text COLLATE "C" NOT NULL,
    instance text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (process, instance)
) WITH (fillfactor = 70);

-- Timeouts that are set. A new one of the same name takes the place of the old one, under another id: one that is
-- under way finds its id gone. `settled` is true for one that was delivered and not done: it is a dead letter.
CREATE TABLE onefold.timeouts (
    process  text COLLATE "C" NOT NULL,
    instance text COLLATE "C" NOT NULL,
    name     text COLLATE "C" NOT NULL,
    id       uuid NOT NULL UNIQUE,
    due_at   timestamptz NOT NULL,
    set_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled  boolean NOT NULL DEFAULT false,
    PRIMARY KEY (process, instance, name)
);
CREATE INDEX timeouts_due ON onefold.timeouts (process, due_at) WHERE NOT settled;
