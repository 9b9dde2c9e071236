"""Self-report of a GPU service: loaded libraries, imported frameworks, visible GPUs, and the verdict of its
node.

Call :func:`report`, or serve it as a path of a WSGI or ASGI application:

    from goldnode.diagnostics import WsgiDiagnostics, report
    app = WsgiDiagnostics(app)                    # GET /diagnostics, for clients on the loopback only

For caches of compiled GPU code, call :func:`cache_environment` before the framework is imported:

    os.environ.update(cache_environment(["triton", "inductor"], "/var/cache/gpu"))

Standard library only. A report imports, loads and initialises nothing, runs no program and does not query the
driver. It costs one read of /proc/self/maps and changes nothing in the calling process.
"""

from __future__ import annotations

from goldnode.diagnostics.caches import CacheKeyError, CacheOptions, cache_environment, cache_key
from goldnode.diagnostics.middleware import AsgiDiagnostics, WsgiDiagnostics, loopback
from goldnode.diagnostics.process import report

__all__ = [
    "AsgiDiagnostics",
    "CacheKeyError",
    "CacheOptions",
    "WsgiDiagnostics",
    "cache_environment",
    "cache_key",
    "loopback",
    "report",
]
