ALTER TABLE onefold.{parent} DETACH PARTITION onefold.{partition} CONCURRENTLY
