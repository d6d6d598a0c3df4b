"""The machines of the settings: kept reached, looked at, changed."""
