"""Logs: what every process of the cluster writes."""
