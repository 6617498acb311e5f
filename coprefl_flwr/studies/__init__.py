"""Studies: pre-training, downstream tasks, tables and figures."""
