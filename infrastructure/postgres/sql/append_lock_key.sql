SELECT onefold.append_lock_key(format('%%I.%%I', %s::text, %s::text)::regclass)
