WITH gone AS (
    UPDATE onefold.held_messages SET resolved_at = clock_timestamp(), resolution = 'discarded', resolved_by = %(who)s
    WHERE id = %(id)s AND resolved_at IS NULL AND cause IS NOT NULL
    RETURNING relay, segment, key, position
), next AS (
    SELECT h.id FROM onefold.held_messages h JOIN gone g USING (relay, segment, key)
    WHERE h.resolved_at IS NULL AND h.position > g.position ORDER BY h.position LIMIT 1
), asked AS (
    UPDATE onefold.held_messages h SET asked_at = clock_timestamp() FROM next WHERE h.id = next.id
)
SELECT relay, key FROM gone
