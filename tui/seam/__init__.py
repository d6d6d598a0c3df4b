"""The seam to the controller: its requests and its snapshots."""
