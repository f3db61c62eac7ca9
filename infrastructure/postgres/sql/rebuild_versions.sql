-- The versions of projections: the serving one, the next, and the one before.
SELECT c.projection, c.segment, c.position, c.fingerprint, c.owner, c.updated_at, r.phase, r.failure, r.started_at,
    to_regclass(format('%I.%I', CASE c.segment WHEN -1 THEN 'read_next' WHEN -2 THEN 'read_before' ELSE 'read' END,
        c.projection)) IS NOT NULL
FROM onefold.checkpoints c LEFT JOIN onefold.rebuilds r ON r.projection = c.projection AND c.segment = -1
WHERE c.segment <= 0 ORDER BY c.projection, c.segment DESC
