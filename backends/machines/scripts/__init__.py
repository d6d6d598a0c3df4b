"""Scripts for other machines, in POSIX sh."""
