"""Long random trials: kills, soaks and machines that stand still."""
