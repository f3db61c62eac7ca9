UPDATE onefold.timeouts SET settled = true WHERE id = ANY (%s) AND NOT settled
