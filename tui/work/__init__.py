"""What the console works on: draft, plans, words, state file. Knows no Textual."""
