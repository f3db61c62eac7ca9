SELECT count(*) FROM onefold.relay_members
WHERE relay = %s AND seen_at > clock_timestamp() - make_interval(secs => %s)
