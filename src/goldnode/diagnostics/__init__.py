"""What a GPU service has got: the libraries that this process has loaded, the frameworks it has imported, the GPUs it may see, and the verdict of
the node it runs on. For a plain call, or as a path of a WSGI or ASGI application:

    from goldnode.diagnostics import WsgiDiagnostics, report
    app = WsgiDiagnostics(app)                    # GET /diagnostics, answered to the loopback

Standard library only. Nothing is imported, loaded, initialised or run for a report, and no driver is asked: a report costs a read of
/proc/self/maps, and changes nothing in the process that makes it.
"""

from __future__ import annotations

from goldnode.diagnostics.middleware import AsgiDiagnostics, WsgiDiagnostics, loopback
from goldnode.diagnostics.process import report

__all__ = ["AsgiDiagnostics", "WsgiDiagnostics", "loopback", "report"]
