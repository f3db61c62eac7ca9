MERGE INTO read.revenue_by_month t
USING (
    SELECT month, currency, sum(orders)::bigint AS orders, sum(revenue) AS revenue
    FROM (
        SELECT n.month, n.currency, n.orders, n.revenue FROM onefold.revenue_by_month_of(%(after)s, %(upto)s) n
        UNION ALL
        SELECT o.month, o.currency, -o.orders, -o.revenue
        FROM onefold.revenue_by_month_of(%(after)s, %(upto)s) n
        JOIN onefold.revenue_by_month_orders o USING (stream, currency)
    ) change
    GROUP BY month, currency
) d
ON t.month = d.month AND t.currency = d.currency
WHEN MATCHED AND t.orders + d.orders = 0 AND t.revenue + d.revenue = 0 THEN DELETE
WHEN MATCHED THEN UPDATE SET orders = t.orders + d.orders, revenue = t.revenue + d.revenue
WHEN NOT MATCHED AND (d.orders <> 0 OR d.revenue <> 0) THEN INSERT (month, currency, orders, revenue) VALUES (d.month, d.currency, d.orders, d.revenue)
