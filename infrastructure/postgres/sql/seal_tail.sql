SELECT count(*) FROM {log} WHERE position > %(last)s
