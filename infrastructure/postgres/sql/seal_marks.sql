SELECT marks FROM onefold.seals WHERE log = %(log)s AND number = %(number)s
