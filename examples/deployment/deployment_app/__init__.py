"""CoPreFL over nodes that are one client each."""
