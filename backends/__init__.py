"""Everything that acts: processes, files, sockets, arithmetic. Knows no terminal."""
