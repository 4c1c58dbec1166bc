"""One line about each strategy, for lists and for shells. The classes' docstrings have the details."""

STRATEGIES = {
    "synchronous": "Wait for every worker, then step along the mean gradient.",
    "fastest_k": "Step along the mean of the first k results; cancel the other tasks.",
    "adaptive_k": "fastest_k whose k grows when noise outweighs progress.",
    "adaptive_load": "fastest_k whose k and load grow as the error falls.",
    "asynchronous": "Step along each gradient as it arrives, damped by its staleness.",
    "local_sgd": "Average the workers' weights after several local steps (DiLoCo, FedAdam).",
    "federated_averaging": "Average the weights after one pass over each of several shards (FedAvg).",
    "elastic_averaging": "Workers train weights of their own, which move towards the model and back (EASGD).",
    "downpour": "Add what workers changed in several local steps as it arrives.",
    "vc_asgd": "Average each worker's weights into the model as they arrive, after one pass over a shard.",
}
"""by the names in `oddlot.strategies.registry.BY_NAME`"""
WRAPPERS = {
    "quorum": "Around rounds: close one once a share of the workers has answered; late ones count less.",
    "backup_tasks": "Around a strategy: idle workers repeat a late task, and the first answer counts.",
    "deadline": "Around a strategy: a task that takes too long ends early and returns what is done.",
    "proportional_load": "Around a strategy: faster workers get larger tasks.",
}
"""by the names in `oddlot.strategies.registry.WRAPPERS`"""
