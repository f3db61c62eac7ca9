DELETE FROM onefold.attempts WHERE consumer = %s AND key = ANY (%s)
