"""The controller as a service."""
