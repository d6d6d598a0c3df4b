"""Machines over SSH: destinations, connections, tunnels, files.

Lessons of measuring that shape this package: a connection that never opened a session
suffers 40 ms stalls (sshd sets TCP_NODELAY with the first one); aes128-gcm is half
again as fast as the default; a process outlives its session unless it watches its
stdin; and copies on the connection of the tokens cost each token tens of milliseconds.
"""
