WITH published AS (
    DELETE FROM onefold.held_messages
    WHERE relay = %(relay)s AND segment = %(segment)s AND position = ANY (%(positions)s) AND resolved_at IS NULL
        AND cause IS NULL
)
UPDATE onefold.held_messages SET resolved_at = clock_timestamp(), resolution = 'published'
WHERE relay = %(relay)s AND segment = %(segment)s AND position = ANY (%(positions)s) AND resolved_at IS NULL
    AND cause IS NOT NULL
