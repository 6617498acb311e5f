"""Recipes: comparisons as YAML files, their runs, and the `coprefl` command."""
