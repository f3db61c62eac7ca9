SELECT coalesce(sum(events), 0)::bigint FROM onefold.rebuild_parts WHERE projection = %(projection)s
