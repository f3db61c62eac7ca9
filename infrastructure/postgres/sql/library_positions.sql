SELECT position, event_id FROM {log} WHERE event_id = ANY (%s::uuid[])
