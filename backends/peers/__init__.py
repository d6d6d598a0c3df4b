"""Machines: the Host protocol and the local machine."""
