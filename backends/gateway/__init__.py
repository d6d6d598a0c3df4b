"""The HTTP proxy before llama-server: clients keep their address, whatever serves."""
