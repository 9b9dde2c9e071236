#!/usr/bin/env bash
# apt 2.6.2 (Debian 12): `apt-get install --reinstall` takes the hold off a package, without a question and without a message.
#
# A reinstallation changes no version, so apt does not count it as a change of a held package: -y needs no --allow-change-held-packages, with or
# without `=VERSION`. dpkg then sets the selection to `install`, and the next upgrade may replace the package. `apt-get install` of
# the version that is there leaves the hold alone. apt 3.0.4 (Debian 13) and 3.3.5 behave alike. Who
# reinstalls a damaged file of a held package has to hold it again.
# Expected: the hold stays, or apt asks. Needs Debian's apt and unshare with user namespaces. Ends with 0 while the behaviour is this, 1 if it
# has changed.
set -euo pipefail
[ "${1:-}" = inside ] || exec unshare --map-root-user bash "$0" inside
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
mkdir -p lists/partial cache/archives/partial parts root/var/lib/dpkg/{info,updates}; touch root/var/lib/dpkg/{status,available}
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive bookworm main" >sources.list
cat >apt.conf <<CONF
Dir::State "$folder"; Dir::State::lists "$folder/lists"; Dir::State::status "$folder/root/var/lib/dpkg/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list"; Dir::Etc::parts "$folder/parts"; Dir::Etc::sourceparts "$folder/parts"; Dir::Log "$folder";
Dir::Etc::preferencesparts "$folder/parts"; APT::Sandbox::User "root"; Acquire::Languages "none";
DPkg::Options { "--root=$folder/root"; "--force-not-root"; "--force-bad-path"; "--log=$folder/log"; };
CONF
export APT_CONFIG=$folder/apt.conf
apt-get --version | head -n 1
apt-get -qq update
apt-get -qq -y install sensible-utils=0.0.17+nmu1 >output 2>&1 || { cat output; exit 1; } # it depends on nothing
after() { # the selection after apt-get with these arguments, on hold before
    echo "sensible-utils hold" | dpkg --admindir=root/var/lib/dpkg --set-selections
    apt-get -y "$@" >output 2>&1 || { tail -n 1 output; return; }
    dpkg-query --admindir=root/var/lib/dpkg --show --showformat '${db:Status-Want}' sensible-utils
}
plain=$(after install sensible-utils); echo "install: $plain"
name=$(after install --reinstall sensible-utils); echo "install --reinstall: $name"
version=$(after install --reinstall sensible-utils=0.0.17+nmu1); echo "install --reinstall with the version: $version"
[ "$plain $name $version" = "hold install install" ]
