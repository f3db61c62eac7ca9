ALTER TABLE onefold.{partition} ADD CONSTRAINT ledger_sealed CHECK (false) NOT VALID
