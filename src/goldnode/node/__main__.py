"""`python -m goldnode.node`, and what the self-contained file starts."""

import sys

from .start import main

if __name__ == "__main__":
    sys.exit(main())
