SELECT consumer, outcome, sum(count)::bigint FROM onefold.outcomes
WHERE consumer = ANY (%s)
GROUP BY consumer, outcome
