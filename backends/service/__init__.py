"""The controller as a service of the system, which outlives logouts and reboots."""
