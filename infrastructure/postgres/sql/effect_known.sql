SELECT call, fingerprint FROM onefold.effect_keys WHERE call = ANY (%s)
