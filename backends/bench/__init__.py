"""Benchmarks of clusters: a matrix of cases, and what was measured."""
