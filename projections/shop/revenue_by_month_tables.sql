CREATE TABLE read.revenue_by_month (
    month    date NOT NULL,
    currency text COLLATE "C" NOT NULL,
    orders   bigint NOT NULL,
    revenue  numeric NOT NULL,
    PRIMARY KEY (month, currency)
);

-- What each order has contributed so far, so that a page adds the difference.
CREATE TABLE onefold.revenue_by_month_orders (
    stream   text COLLATE "C" NOT NULL,
    currency text COLLATE "C" NOT NULL,
    month    date NOT NULL,
    orders   bigint NOT NULL,
    revenue  numeric NOT NULL,
    PRIMARY KEY (stream, currency)
);

-- The contribution of the orders that a run of the log touches, from all their events up to its end.
CREATE OR REPLACE FUNCTION onefold.revenue_by_month_of(after bigint, upto bigint)
RETURNS TABLE (stream text, currency text, month date, orders bigint, revenue numeric)
-- Before the log was analysed the planner takes every run for a row or two, and loops within loops. What reads a
-- table by stream is lateral, and so goes by its index all the same.
LANGUAGE sql STABLE SET enable_nestloop = off AS $$
    WITH touched AS MATERIALIZED (
        SELECT DISTINCT e.stream FROM onefold.events e
        WHERE e.position > after AND e.position <= upto AND e.type IN ('order.placed', 'order.payment_received')
    ), facts AS MATERIALIZED (
        SELECT e.stream, e.position, e.type, e.data FROM touched t CROSS JOIN LATERAL (
            SELECT l.stream, l.position, l.type, l.data FROM onefold.events l WHERE l.stream = t.stream OFFSET 0
        ) e
        -- Outside, so that the index on positions is not read up to here once for each stream.
        WHERE e.position <= upto AND e.type IN ('order.placed', 'order.payment_received')
    ), placed AS (
        SELECT DISTINCT ON (f.stream) f.stream, f.data ->> 'currency' AS currency,
            date_trunc('month', (f.data ->> 'placed_on')::date)::date AS month
        FROM facts f WHERE f.type = 'order.placed' ORDER BY f.stream, f.data ->> 'placed_on', f.position
    ), paid AS (
        SELECT f.stream, f.data -> 'amount' ->> 'currency' AS currency,
            sum((f.data -> 'amount' ->> 'amount')::numeric) AS revenue
        FROM facts f WHERE f.type = 'order.payment_received' GROUP BY 1, 2
    ), currencies AS (
        SELECT p.stream, p.currency FROM placed p
        UNION SELECT s.stream, s.currency FROM paid s JOIN placed p ON p.stream = s.stream
        -- What was counted under a currency that an earlier placing has replaced is taken off again.
        UNION SELECT p.stream, o.currency FROM placed p CROSS JOIN LATERAL (
            SELECT k.currency FROM onefold.revenue_by_month_orders k WHERE k.stream = p.stream OFFSET 0
        ) o
    )
    SELECT p.stream, c.currency, p.month, (c.currency = p.currency)::int::bigint, coalesce(s.revenue, 0)
    FROM placed p
    JOIN currencies c ON c.stream = p.stream
    LEFT JOIN paid s ON s.stream = c.stream AND s.currency = c.currency
$$;
