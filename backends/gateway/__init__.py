"""What stands before llama-server: clients keep their address, whatever serves."""
