"""Lends this machine to consoles elsewhere, and being invited to do so."""
