SELECT position FROM onefold.held_messages
WHERE relay = %s AND position > %s AND resolution = 'discarded'
