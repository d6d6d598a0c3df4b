"""Dialogs that open above a screen. They know no screen."""
