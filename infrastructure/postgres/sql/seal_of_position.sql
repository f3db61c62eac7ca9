SELECT number FROM onefold.seals
WHERE log = %(log)s AND last_position >= %(position)s AND first_position <= %(position)s
