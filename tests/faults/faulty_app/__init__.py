"""An app whose clients fail."""
