"""The seam to the controller: what may be asked of it, and its snapshots."""
