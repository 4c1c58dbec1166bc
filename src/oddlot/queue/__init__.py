"""A queue of training jobs, in the order that the history of jobs suggests (Helios, Hu et al., SC 2021)."""
