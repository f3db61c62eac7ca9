INSERT INTO onefold.snapshots AS s (log, stream, version, fingerprint, state) VALUES (%s, %s, %s, %s, %s::jsonb)
ON CONFLICT (log, stream) DO UPDATE
SET version = excluded.version, fingerprint = excluded.fingerprint, state = excluded.state, taken_at = clock_timestamp()
WHERE s.version < excluded.version OR s.fingerprint <> excluded.fingerprint
