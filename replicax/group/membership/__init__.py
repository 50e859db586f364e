"""Elastic groups: which processes take part in the next collective when some are lost and others come."""
