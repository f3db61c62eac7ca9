SELECT position, coalesce(key, id), key, id, type, body, headers FROM onefold.outbox
WHERE channel = %(channel)s AND position > %(after)s AND position <= %(upto)s
    AND slot %% %(segments)s = %(segment)s
ORDER BY position LIMIT %(limit)s
