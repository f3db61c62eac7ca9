SELECT id, ledger, ordering, read_model FROM onefold.consumers WHERE consumer = %s
