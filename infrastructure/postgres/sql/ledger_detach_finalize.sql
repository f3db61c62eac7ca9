ALTER TABLE onefold.{parent} DETACH PARTITION onefold.{partition} FINALIZE
