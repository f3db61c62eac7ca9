WITH free AS MATERIALIZED (
    SELECT s.sequence FROM onefold.sequences s
    WHERE s.consumer = %(consumer)s AND s.sequence = ANY (%(sequences)s::text[])
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
SELECT s.sequence FROM onefold.sequences s
WHERE s.consumer = %(consumer)s AND s.sequence = ANY (%(sequences)s::text[])
    AND NOT EXISTS (SELECT FROM free WHERE free.sequence = s.sequence)
