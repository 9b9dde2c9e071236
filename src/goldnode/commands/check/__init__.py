"""Commands `goldnode check` (`command`), `check-catalog` (`catalog`) and `check-node` (`node`).

- `request`: the classes, stacks and workloads of a command line, and the findings about them
- `what_if`, `what_if_parts`, `what_if_report`: `check --to`, which compares a class with itself on another stack
- `catalog_report`: the check of all declarations, the site file, the facts and the locks
"""
