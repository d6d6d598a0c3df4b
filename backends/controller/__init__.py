"""The background process that owns what must outlive the screen."""
