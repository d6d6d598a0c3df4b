"""Requests to the controller and its snapshots."""
