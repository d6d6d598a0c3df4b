"""One folder per screen: its panes, its widgets, its arithmetic."""
