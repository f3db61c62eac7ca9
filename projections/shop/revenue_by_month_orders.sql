INSERT INTO onefold.revenue_by_month_orders (stream, currency, month, orders, revenue)
SELECT stream, currency, month, orders, revenue FROM onefold.revenue_by_month_of(%(after)s, %(upto)s)
ON CONFLICT (stream, currency) DO UPDATE
SET month = excluded.month, orders = excluded.orders, revenue = excluded.revenue
