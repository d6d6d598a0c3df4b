"""Traffic: where each token's time goes, and every command on every link."""
