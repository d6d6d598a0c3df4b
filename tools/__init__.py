"""Benchmarks, trials, recorders and training: run by hand, not by the tests."""
