"""One module per benchmark; each module-level `Experiment` is found by `prudent.bench.load_all`.

Definitions are imported by ``prudent bench list``: keep module-level imports light and import JAX inside ``run_cell``.
"""
