SELECT version, state::text FROM onefold.snapshots WHERE log = %b AND stream = %b AND fingerprint = %b
