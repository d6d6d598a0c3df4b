"""Recorders of conversations that the tests replay."""
