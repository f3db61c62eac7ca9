SELECT onefold.http_keep(%s, %s, %s, %s, %s, %s)
