"""Types of the JSON documents that nodes, controllers and tools exchange: one module per document.

Each type validates strictly: an unknown key or a value of another type is an error. `schemas/` holds the JSON
Schemas generated from them (`python -m goldnode.documents`), for readers in other languages.

The node's program writes these documents without these types, since it runs on the standard library of Python
3.9 alone. The tests validate everything that it and the commands write.
"""

from __future__ import annotations
