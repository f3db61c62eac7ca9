DELETE FROM onefold.in_hand WHERE worker = %s
