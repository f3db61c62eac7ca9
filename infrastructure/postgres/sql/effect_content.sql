SELECT data::text, metadata::text FROM onefold.effects WHERE id = %s AND dead_at IS NOT NULL
