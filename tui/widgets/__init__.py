"""Widgets and helpers of no screen in particular."""
