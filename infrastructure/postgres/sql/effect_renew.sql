-- A try that has ended has no owner: when the task is due again is not for its lease to say.
UPDATE onefold.effects SET due_at = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE id = %(id)s AND token = %(token)s AND owner IS NOT NULL
