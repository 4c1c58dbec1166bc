"""One line about each strategy, for lists and shell completion. The classes' docstrings have the details."""

STRATEGIES = {
    "synchronous": "Wait for every worker, then apply the mean gradient.",
    "fastest_k": "Apply the mean of the first k updates; cancel the other tasks.",
    "adaptive_k": "Like fastest_k, and raise k when noise outweighs progress.",
    "adaptive_load": "Like fastest_k, and adapt k and the task size as the error falls.",
    "asynchronous": "Apply each gradient as it arrives, damped by its staleness.",
    "local_sgd": "Average the workers' weights after several local steps (DiLoCo, FedAdam).",
    "federated_averaging": "Average the weights after one pass over each of several shards (FedAvg).",
    "elastic_averaging": "Train weights per worker; move them and the model towards each other (EASGD).",
    "downpour": "Add the weight difference of several local steps as it arrives.",
    "vc_asgd": "Average each worker's weights into the model as they arrive, after one pass over a shard.",
    "gossip": "Train on every worker, and average models with peers at fixed intervals, without a hub.",
    "adaptive_gossip": "Like gossip, and exchange models only when the own one has changed enough.",
    "event_grad": "Send changed layers to the neighbors on a ring, and average at every step (EventGraD).",
}
"""Summaries by the names in `oddlot.strategies.registry.BY_NAME`."""
WRAPPERS = {
    "quorum": "Close a round once a share of the workers has reported; late updates count less.",
    "backup_tasks": "Let idle workers repeat late tasks; the first update counts.",
    "deadline": "End tasks at a deadline, and merge the finished part.",
    "proportional_load": "Give faster workers larger tasks.",
}
"""Summaries by the names in `oddlot.strategies.registry.WRAPPERS`."""
