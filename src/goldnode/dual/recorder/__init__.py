"""The recorder: it runs inside an image or on a node, and writes what a model or a command computes as a record.

Standard library only (Python 3.9), and the framework that the image has.
"""
