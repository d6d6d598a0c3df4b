"""The screen of machines and processes."""
