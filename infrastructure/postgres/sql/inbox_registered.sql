SELECT id, ledger, read_model FROM onefold.consumers WHERE consumer = %s
