"""Jobs as pure functions of their records, resumed from a store: the audit, its stages, sweeps of many jobs.

Nothing is imported here: a worker sets its threads before anything loads PyTorch.
"""
