INSERT INTO onefold.relay_members AS m (relay, owner) VALUES (%s, %s)
ON CONFLICT (relay, owner) DO UPDATE SET seen_at = clock_timestamp()
