"""What drafts tokens ahead of the model: methods, draft models, and which one pays."""
