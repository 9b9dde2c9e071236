"""NVIDIA_REQUIRE_CUDA, written from the compatibility facts.

The value is a list of alternatives separated by spaces. Each alternative is a list of conditions
separated by commas, and all of them must hold. A condition is PROPERTY OPERATOR VALUE; the
properties are cuda, driver, arch and brand. Versions compare number by number, and missing numbers
count as zero (libnvidia-container's command line, src/cli/dsl.c; nvidia-container-toolkit,
internal/requirements).

The container toolkit evaluates this value in legacy mode only, not with CDI. It is a hint;
`goldnode check` enforces the requirement.
"""

from __future__ import annotations

from goldnode.core.errors import ImageError
from goldnode.facts import workload as facts
from goldnode.facts.workload import closest, key, minor


def minimum_driver(version: str) -> str:
    """Return the oldest driver that runs CUDA `version` without a forward-compatibility package.

    Raises ImageError if the facts do not know this CUDA release.
    """
    row = facts.cudas().get(minor(version))
    if row is None:
        near = closest(version, facts.cudas())
        raise ImageError(
            f"CUDA {version} is not among the releases that the facts know, so that nothing says which "
            "driver it needs",
            remedy=(
                f"correct the version (the nearest known one is {near}), or add it to facts/cuda.yml with "
                "its source"
            ),
        )
    return row.minimum


def requirement(version: str) -> str:
    """Return NVIDIA_REQUIRE_CUDA for an image with CUDA `version` ("12.4.1") and without the cuda-compat
    package.

    It admits every driver from the minimum of its major family on, exactly like the rule
    `cuda-driver`. The first alternative (`cuda>=…`) admits no further driver. The toolkit names it
    when it refuses to start a container, and it decides on a board that reports no driver version.
    It is omitted for the first release of a family, whose branch began below the minimum. Numbers
    have no leading zeros: parsers of semantic versions may reject them, and no comparison needs
    them.
    """
    least, wanted = key(minimum_driver(version)), key(minor(version))
    natives = [
        oldest
        for branch, native in facts.native_cuda().items()
        if native and key(native) >= wanted and (oldest := facts.oldest_of_branch().get(branch))
    ]
    condition = "driver>=" + ".".join(str(part) for part in least)
    if any(oldest < least for oldest in natives):
        return condition
    return f"cuda>={minor(version)} {condition}"
