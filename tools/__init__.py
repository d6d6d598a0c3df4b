"""Benchmarks, recorders and training are run by hand; ``make test-all`` runs trials."""
