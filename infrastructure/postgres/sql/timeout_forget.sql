DELETE FROM onefold.timeouts WHERE process = %(process)s AND instance = %(instance)s AND name = %(name)s
