UPDATE onefold.effects SET dead_at = NULL, outcome = NULL, due_at = clock_timestamp(), attempts = 0,
    first_try_at = CASE WHEN %(fresh)s THEN NULL ELSE first_try_at END, resolved_by = %(by)s
WHERE id = %(id)s AND dead_at IS NOT NULL AND resolution IS NULL AND outcome = %(outcome)s
