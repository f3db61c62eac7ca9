INSERT INTO onefold.sequences AS s (consumer, sequence, version) VALUES (%(consumer)s, %(sequence)s, %(version)s)
ON CONFLICT (consumer, sequence) DO UPDATE SET version = excluded.version WHERE s.version = excluded.version - 1
