"""`goldnode-node diagnose`: the first checks an on-call person makes, in their order, from two samples a second apart (docs/how-to/diagnose.md).

:mod:`sample` takes them, :mod:`running` reads what the processes on the GPUs use, :mod:`checks` and :mod:`compatible` judge both and are
pure, :mod:`command` prints.
"""
