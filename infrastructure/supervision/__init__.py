"""Supervision: the parts of an installation as processes of one tree."""
