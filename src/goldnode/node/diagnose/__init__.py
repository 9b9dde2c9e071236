"""`goldnode-node diagnose`: the first checks an on-call person makes, in their order, from two samples a second apart (docs/how-to/diagnose.md).

The input is two samples, one second apart. :mod:`sample` takes them, and :mod:`running` reads what the
processes on the GPUs use. :mod:`checks` and :mod:`compatible` judge both; they are pure. :mod:`command`
prints the report.
"""
