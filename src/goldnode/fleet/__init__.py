"""Many nodes together: their changes, step by step, and the reports on them.

The rooms, from low to high. A room imports only rooms above it in this list (tests/unit/test_layers.py)::

    shared    used by several rooms: who acts, the deny list, the text of metrics
    keys      the keys of a site: kinds, making, the list of them, the authority of nodes
    ingest    captures and verdicts of nodes, flattened into Parquet files
    report    views over these files, and the documents and pages made of them
    rollout   decisions: the document, the state and `plan`, called for real nodes and by the simulator
    store     the memory of rollouts: grants, limits, orders and the log, in transactions
    events    what has happened, delivered to the hooks of a site
    drain     a node out of service and back: Slurm, kubectl, the site's commands
    nodes     work on nodes without a rollout: plan, runs, adopt, the first class, disk updates
    service   the lock service over HTTP, in front of the store
    control   the controller of a rollout, and all it acts with: push, channel, drains, requirements

`rollout` is pure: no store, process, clock or file (tests/unit/fleet/rollout/test_pure.py). Two more decisions are split
in the same way::

    queue     which disruptive work is next: decided in rollout, its rows in store, started by control
    ladder    which rung of a repair is next: decided in rollout, its log and holds in store.repairs, done by control
"""
