"""What asks or tells something above a screen. Dialogs know no screen."""
