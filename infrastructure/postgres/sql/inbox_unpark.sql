DELETE FROM onefold.parked WHERE id = ANY (%s)
