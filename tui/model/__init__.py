"""The console's state: draft, plans, words, state file. Knows no Textual."""
