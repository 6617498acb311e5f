"""Studies: populations of clients, stages of methods on them, and the settings of both."""
