"""Programs that call a GPU: goldnode-smoke, and the base of canary jobs and prove-gpu.

They need Python's standard library only, 3.9 or newer, and run inside images and on nodes as a
single file.

* a program: `command` (exit codes, usage, signals), `children` (processes that can be killed), `work` (in
  such a process), `results`, `pack` (the single file)
* a machine: `image` (its files), `native` (shared libraries), `libraries` (their versions)
* a device: `device` (driver interface and tests), behind it `cuda` with `ptx`, `rocm` and `opencl` with
  `kernels`, `nccl`; `cpu` and `linear` compute the same without one
* `smoke`: the program goldnode-smoke

Every test runs in a process of its own, because driver libraries hang and crash.
"""
