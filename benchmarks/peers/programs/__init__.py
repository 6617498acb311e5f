"""FedAvg on a workload, a file for each package: `run(task, rounds, after_round)`.

Each program trains the network of the task from its initial weights, calls `after_round` after
every round, and returns the trained network. It uses its package in the mode that the package's
documents name as the fastest on one machine.
"""
