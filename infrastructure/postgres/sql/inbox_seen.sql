SELECT l.key, l.fingerprint, l.first_seen
FROM unnest(%b::uuid[]) AS k (key) JOIN {ledger} l ON l.key = k.key AND l.consumer = %s
