"""Builders, fakes and helpers that all tests share."""
