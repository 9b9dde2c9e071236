"""Table of the environment variables that goldnode reads, rendered into docs/reference/configuration.md.

Code that reads a variable defines its name again as a constant. Tests keep both in sync.
"""

from __future__ import annotations

from typing import NamedTuple


class Variable(NamedTuple):
    """One variable: its name, its default, and its effect."""

    name: str
    default: str
    meaning: str


# Lists are separated by ":", as in PATH.
VARIABLES = (
    Variable(
        "GOLDNODE_CATALOG",
        "none",
        "Directories with `stacks/`, `platforms/`, `classes/` or `archives.yml`, read beside goldnode's own and "
        "before the site file's `catalog`.",
    ),
    Variable(
        "GOLDNODE_SITE",
        "`goldnode-site.yml` here, else `/etc/goldnode/site.yml`",
        "The site file. A missing file is an error.",
    ),
    Variable(
        "GOLDNODE_LOCKS",
        "none",
        "Directories searched for `STACK.lock.yml` first: before the site file's `locks`, `goldnode-locks/` "
        "beside the site file (or here) where goldnode is installed from a wheel, and the stack's own directory.",
    ),
    Variable(
        "GOLDNODE_CACHE",
        "`goldnode` in `$XDG_CACHE_HOME`, else in `~/.cache`",
        "Where indexes of archives, packages, built modules, and what was read and checked are kept: all "
        "can be fetched or made again.",
    ),
    Variable(
        "GOLDNODE_AUDIT",
        "none",
        "`off` has Ansible ask each host of `goldnode plan` and `site.yml` over an `ssh` of its own. `on` also saves the process that "
        "`site.yml` takes for each host, with a strategy of which Ansible warns.",
    ),
    Variable(
        "GOLDNODE_RUNS",
        "`.goldnode/runs`",
        "Directory of the records of runs; `off` disables them.",
    ),
    Variable(
        "GOLDNODE_RUNS_KEEP", "`50`", "Number of records to store; the oldest are removed first."
    ),
    Variable(
        "GOLDNODE_MATRIX",
        "`images/containers/matrix.yml`",
        "The matrix of container images; `--matrix` takes precedence.",
    ),
    Variable(
        "GOLDNODE_IMAGE_LOCKS",
        "none",
        "Directories searched for locks of images first, before `locks/` beside the matrix.",
    ),
    Variable(
        "GOLDNODE_IMAGES",
        "`.goldnode/images`",
        "The store of container images; `--store` takes precedence.",
    ),
    Variable(
        "GOLDNODE_IMAGE_ENGINE",
        "BuildKit, else buildah",
        "`buildkit` or `buildah`: the engine that builds images; `--engine` takes precedence.",
    ),
    Variable(
        "GOLDNODE_REGISTRY",
        "none",
        "`HOST[:PORT][/PREFIX]`: where images are published and their channels are; `--to` goes before it.",
    ),
    Variable(
        "GOLDNODE_REGISTRY_PORT",
        "`5117`",
        "Port of the registry that `scripts/build-images` starts on the loopback.",
    ),
    Variable(
        "GOLDNODE_IMAGE_KEY",
        "the site file's `images.signing_key`",
        "Secret key (PEM, a file) that signs evidence of images and disks, published disks, and moves of "
        "channels; `--key` goes before it.",
    ),
    Variable(
        "GOLDNODE_PKCS11_PIN",
        "none",
        "Password (PIN) of the PKCS #11 token with a key of a channel or of facts (`hsm:KEYID?label=TOKEN`).",
    ),
    Variable(
        "GOLDNODE_ONLINE_KEY",
        "the site file's `images.online_key`",
        "Secret key (PEM, a file) that signs which state of the channels of images and disks is the newest; "
        "`--online-key` goes before it.",
    ),
    Variable(
        "GOLDNODE_SIGNING_PASSWORD",
        "none",
        "Password of a key that images or disks are signed with, where the key is encrypted.",
    ),
    Variable(
        "GOLDNODE_DISK_DEFINITION",
        "`images/disks/disks.yml`",
        "The definition of disk images; `--definition` takes precedence.",
    ),
    Variable(
        "GOLDNODE_DISK_LOCKS",
        "none",
        "Directories searched for locks of disks first, before `locks/` beside the definition.",
    ),
    Variable(
        "GOLDNODE_DISKS",
        "`.goldnode/disks`",
        "The store of disk images; `--store` takes precedence.",
    ),
    Variable(
        "GOLDNODE_DISKS_PLACE",
        "none",
        "Directory of published disks and their channels; `--to` takes precedence.",
    ),
    Variable(
        "GOLDNODE_DISKS_FROM",
        "none",
        "Published directory of disks, or its address, that `disks pull` reads; `--from` goes before it.",
    ),
    Variable(
        "GOLDNODE_FLEET_STORE",
        "the site file's `fleet.store`, else `.goldnode/fleet.db`",
        "The store of rollouts: a file (SQLite) or `postgresql://USER@HOST/DATABASE`; `--fleet-store` takes precedence.",
    ),
    Variable(
        "GOLDNODE_FLEET_DATA",
        "the site file's `fleet.data`, else `.goldnode/fleet-data`",
        "Directory of the captures and verdicts of the fleet; `--data` takes precedence. With it or the site file's, "
        "`site.yml` fetches those of every node.",
    ),
    Variable(
        "GOLDNODE_VARS_STAGE",
        "`inventory`",
        "When Ansible's plugin `goldnode_class` gives hosts their class: `inventory` (once per inventory), "
        "`task` or `all`.",
    ),
)

# Read by the scheduler integrations that goldnode installs on nodes.
ON_NODES = (
    Variable(
        "GOLDNODE_RUN",
        "`/run/goldnode`",
        "Directory of the last verdict: in a pod, the mount point of the node's directory.",
    ),
    Variable(
        "GOLDNODE_STATE",
        "`/var/lib/goldnode`",
        "Directory of the file in which `slurm-health` and `slurm-prolog` record their drains.",
    ),
    Variable(
        "GOLDNODE_PROGRAM",
        "`/usr/lib/goldnode/goldnode-node`",
        "Program that `slurm-prolog`, `slurm-task-prolog` and `goldnode.nhc` call.",
    ),
    Variable(
        "GOLDNODE_COHORT",
        "none",
        "With `goldnode-node preflight`: directory of a job that its nodes share, or a file of all nodes; `--cohort` goes before it.",
    ),
    Variable(
        "GOLDNODE_IMAGE_FILE",
        "none",
        "With `goldnode-node preflight`: description of the job's image; `--image` goes before it.",
    ),
    Variable(
        "GOLDNODE_CACHES",
        "none",
        "With `slurm-task-prolog`: directory of all caches of compiled code; without it, a job gets none.",
    ),
    Variable(
        "GOLDNODE_CACHE_NAMES",
        "`cuda triton inductor`",
        "With `slurm-task-prolog`: the caches of a job.",
    ),
    Variable("GOLDNODE_IMAGE", "none", "With `slurm-task-prolog`: digest of the job's image."),
    Variable(
        "GOLDNODE_PATH",
        "none",
        "Directories that `slurm-health` and `slurm-prolog` search for `scontrol` before the usual ones.",
    ),
    Variable(
        "GOLDNODE_DEBUG",
        "none",
        "With any value, `goldnode-node` prints the traceback of a [failure of its "
        "own](sanity.md#when-the-check-itself-fails).",
    ),
)

# Defined by other programs. goldnode reads them, or passes them to the programs it runs.
FOREIGN = (
    Variable(
        "XDG_CACHE_HOME",
        "`~/.cache`",
        "`goldnode` below it is what `GOLDNODE_CACHE` is by default.",
    ),
    Variable("TMPDIR", "`/tmp`", "Directory for temporary roots of apt and other temporary files."),
    Variable(
        "DOCKER_HOST",
        "`/var/run/docker.sock`",
        "The engine of the demo's and the tests' nodes, and of BuildKit.",
    ),
    Variable(
        "DOCKER_CONTEXT, DOCKER_TLS_VERIFY, DOCKER_CERT_PATH, BUILDX_BUILDER, BUILDX_CONFIG, KUBECONFIG",
        "docker's own",
        "Passed to docker for builds with BuildKit.",
    ),
    Variable("REGISTRY_AUTH_FILE", "none", "Logins for registries; searched first."),
    Variable(
        "DOCKER_CONFIG",
        "`~/.docker`",
        "Directory of the `config.json` of Docker, where logins for registries are searched next.",
    ),
    Variable(
        "XDG_RUNTIME_DIR",
        "none",
        "`containers/auth.json` below it has the logins of podman and buildah, searched last.",
    ),
    Variable(
        "PYKCS11LIB",
        "none",
        "Library of the PKCS #11 token, as in `/usr/lib/softhsm/libsofthsm2.so`.",
    ),
    Variable(
        "KBUILD_SIGN_PIN",
        "none",
        "Password of the site file's `module_signing.key`, where it is encrypted.",
    ),
    Variable(
        "http_proxy, https_proxy, no_proxy",
        "none",
        "The proxy for archives, after what apt is set to, and for registries.",
    ),
    Variable(
        "ANSIBLE_CONFIG",
        "`ansible.cfg` here, else goldnode's",
        "Ansible's configuration for `goldnode plan`, `adopt`, `disks update` and `scripts/verify`. Other "
        "`ANSIBLE_…` variables also have an effect.",
    ),
)

FOR_TESTS = (
    Variable(
        "GOLDNODE_SLOT_CAUSES",
        "a few",
        "`all`: `tests/disks/test_disk_slots.py` tries every way in which a new image can fail.",
    ),
    Variable(
        "GOLDNODE_SLOT_TRIES",
        "`1`",
        "Number of boots that this test gives a new image; an update gives 3.",
    ),
    Variable(
        "GOLDNODE_STACK_ROUNDS",
        "`1`",
        "How often the molecule scenario `stacks` goes to the other stack and back.",
    ),
    Variable(
        "GOLDNODE_SIMULATOR",
        "none",
        "Directory of a simulated machine: [how](../../tests/simulators/hardware/README.md).",
    ),
    Variable(
        "GOLDNODE_ACCELERATOR",
        "none",
        "Faults of the simulated CUDA and HIP libraries: `tests/simulators/accelerators/`.",
    ),
)
