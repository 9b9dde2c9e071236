"""Judge text that people paste: kernel logs, tables and errors of vendors' tools, job logs, or a description.

:func:`goldnode.explain.answer.explain` is the one entry. It hands the lines to the readers of
:mod:`.readers` in turn, each of which takes the lines of its form; what no reader took is compared with
the messages of `facts/symptoms.yml`, and a text without any message with their descriptions.
:mod:`.here` asks this node what decides between the causes.
"""
