"""Long random trials: kills, soaks, and figures beside those of real engines."""
