"""Checking a method: does it keep what studies rely on? `coprefl check-method PLACE` runs it."""
