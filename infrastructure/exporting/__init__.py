"""Exporting: a log as files that anybody can read, and an identical log made of them."""
