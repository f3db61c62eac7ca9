SELECT month, currency, orders, revenue FROM read.revenue_by_month ORDER BY month, currency
