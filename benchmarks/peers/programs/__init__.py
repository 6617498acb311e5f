"""FedAvg on a workload, a file for each package: `run(task, rounds, after_round)`.

Each trains the task's own network from its first weights, calls `after_round` after every round,
and returns the network with the last weights. Each uses its package in the mode that its own
documents name as the fastest on one machine.
"""
