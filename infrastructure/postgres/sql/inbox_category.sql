SELECT category FROM onefold.consumers WHERE id = %s
