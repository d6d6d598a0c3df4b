"""Everything that draws. Talks to the controller client only."""
