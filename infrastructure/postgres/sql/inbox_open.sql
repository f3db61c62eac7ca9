-- A trigger refuses to commit while this is true.
INSERT INTO onefold.in_hand AS h (worker, consumer, keys, open) VALUES (%b, %b, ARRAY[]::uuid[], true)
ON CONFLICT (worker) DO UPDATE SET open = true
