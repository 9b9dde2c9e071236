"""CDI specs as the programs that write them print them, and files that are none."""

from __future__ import annotations

import pytest

from goldnode.node.effective.cdi import read_cdi

NVIDIA = """\
---
cdiVersion: 0.7.0
containerEdits:
  additionalGids:
    - 44
  deviceNodes:
    - path: /dev/nvidiactl
  hooks:
    - args: [nvidia-cdi-hook, create-symlinks]
      hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
  mounts:
    - containerPath: /inside/libcuda.so.535.2
      hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.2
      options: [ro]
devices:
  - containerEdits:
      deviceNodes:
        - hostPath: /dev/nvidia0
          path: /dev/nvidia0
    name: "0"
  - name: all
kind: nvidia.com/gpu
"""


def test_host_paths_of_a_spec_in_yaml() -> None:
    assert read_cdi(NVIDIA) == {
        "kind": "nvidia.com/gpu",
        "devices": ["0", "all"],
        "paths": [
            "/dev/nvidia0",
            "/dev/nvidiactl",
            "/usr/bin/nvidia-cdi-hook",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.535.2",
        ],
    }


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "1",
        '{"devices": [1]}',
        '{"containerEdits": {"deviceNodes": [{}]}}',
        '{"containerEdits": [1]}',
    ],
)
def test_json_that_is_no_cdi_spec_is_of_no_kind(text: str) -> None:
    assert read_cdi(text) == {"kind": None, "devices": [], "paths": []}
