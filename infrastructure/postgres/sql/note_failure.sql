UPDATE onefold.checkpoints
SET attempts = attempts + 1, failure = %(failure)s::jsonb || jsonb_build_object('at', clock_timestamp())
WHERE projection = %(projection)s AND segment = %(segment)s AND owner = %(owner)s
RETURNING attempts
