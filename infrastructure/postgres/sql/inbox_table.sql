-- Whether the table is there, whether the consumer has begun any sequence, and who has folded into it before.
SELECT to_regclass(%(table)s) IS NOT NULL,
    EXISTS (SELECT FROM onefold.sequences WHERE consumer = %(consumer)s AND version > 0),
    coalesce(
        (
            SELECT format('consumer %%s', c.consumer) FROM onefold.consumers c
            WHERE c.id < %(consumer)s AND split_part(c.read_model, ' ', 1) = %(projection)s LIMIT 1
        ),
        (SELECT format('projection %%s', p.projection) FROM onefold.checkpoints p WHERE p.projection = %(projection)s LIMIT 1)
    )
