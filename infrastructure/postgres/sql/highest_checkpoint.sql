SELECT coalesce(max(position), 0) FROM onefold.checkpoints WHERE %s::text = 'onefold' AND log = %s
