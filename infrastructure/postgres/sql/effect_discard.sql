UPDATE onefold.effects SET resolution = 'discarded', resolved_by = %(by)s,
    remove_at = clock_timestamp() + make_interval(secs => %(keep)s)
WHERE id = %(id)s AND dead_at IS NOT NULL AND resolution IS NULL
