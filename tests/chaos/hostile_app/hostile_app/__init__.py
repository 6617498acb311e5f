"""An app with hostile clients."""
