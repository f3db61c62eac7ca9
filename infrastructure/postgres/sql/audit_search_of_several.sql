SELECT * FROM ({parts}) found ORDER BY {order} LIMIT %(limit)s
