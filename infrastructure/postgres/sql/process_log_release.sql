UPDATE onefold.log_subscriptions SET owner = NULL, expires_at = NULL
WHERE consumer = %(consumer)s AND log = %(log)s AND token = %(token)s AND owner = %(owner)s
