UPDATE onefold.consumers SET category = coalesce(category, %s) WHERE id = %s RETURNING category
