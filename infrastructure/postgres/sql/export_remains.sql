SELECT (SELECT l.position FROM {log} l ORDER BY l.position DESC LIMIT 1),
    (
        SELECT string_agg(c.projection, ', ' ORDER BY c.projection) FROM onefold.checkpoints c
        WHERE c.log IN (%(name)s, 'onefold.' || %(name)s) AND c.position > 0
    ),
    (SELECT count(*) FROM onefold.snapshots s WHERE s.log = %(name)s)
