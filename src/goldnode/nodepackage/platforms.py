"""How much user data each platform takes. A light module: the command line lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UserDataPlatform:
    """Limit and encoding of user data on a platform.

    `limit`: bytes; None: none known. `base64`: they count in the base64 that its interface asks for. `binary`: it takes
    gzip, which cloud-init unpacks. `source`: where the limit was read on 2026-11-30.
    """

    name: str
    limit: int | None
    source: str
    base64: bool = False
    binary: bool = False

    def size(self, content: bytes) -> int:
        """Return the bytes that count for the limit."""
        return -(-len(content) // 3) * 4 if self.base64 else len(content)


_ALL = (
    UserDataPlatform("nocloud", None, "a file or a disk: nothing limits it", binary=True),
    # "limited to 16 KB, in raw form, before it is base64-encoded"
    UserDataPlatform(
        "ec2",
        16384,
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html",
        binary=True,
    ),
    # "The maximum length of the binary array is 65535 bytes"
    UserDataPlatform(
        "azure",
        65535,
        "https://learn.microsoft.com/en-us/javascript/api/@azure/arm-compute/osprofileprovisioningdata",
        binary=True,
    ),
    # "must be base64 encoded and is restricted to 65535 bytes"
    UserDataPlatform(
        "openstack",
        65535,
        "https://docs.openstack.org/nova/stein/user/user-data.html",
        base64=True,
        binary=True,
    ),
    # Values of metadata are text: "less than or equal to 262144 bytes"
    UserDataPlatform(
        "gce",
        262144,
        "https://documentation.s3ns.fr/dotnet/docs/reference/Google.Cloud.Compute.V1/2.6.0/Google.Cloud.Compute.V1.Items",
    ),
    # "The max size of the userdata is 524288 bytes", a string
    UserDataPlatform(
        "vsphere",
        524288,
        "https://developer.broadcom.com/xapis/virtual-infrastructure-json-api/latest/data-structures/CustomizationCloudinitPrep",
    ),
    # "must be plain text and may not exceed 64 KiB in size"
    UserDataPlatform("digitalocean", 65536, "its API, as generated clients quote it"),
    # "This field is limited to 32KiB"
    UserDataPlatform("hetzner", 32768, "its API, as generated clients quote it"),
)
PLATFORMS = {platform.name: platform for platform in _ALL}
# Without a named platform: what fits here fits everywhere.
ANY = UserDataPlatform(
    "any", min(platform.limit for platform in _ALL if platform.limit is not None), "the smallest"
)
