"""An app whose clients behave as none must."""
