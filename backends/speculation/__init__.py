"""Speculation: methods, draft models, and the comparison of them."""
