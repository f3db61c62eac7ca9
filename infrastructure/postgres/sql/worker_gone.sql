DELETE FROM onefold.consumer_workers WHERE worker = %s OR seen_at < clock_timestamp() - interval '1 hour'
