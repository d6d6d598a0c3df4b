"""Putting our engine, relay and models onto other machines, and taking them away."""
