"""Driving the relay: its command line, its counters, its lab."""
