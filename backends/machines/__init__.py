"""Machines: how each is looked after, reached and looked at."""
