SELECT body, headers FROM onefold.held_messages WHERE id = %s
