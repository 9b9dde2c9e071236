#!/usr/bin/env bash
# apt 3.0.4 and sqv 1.3.0-3 (Debian 13): archive keys on Brainpool curves are refused, although apt's own policy permits them until 2028.
#
# /usr/share/apt/default-sequoia.config, which apt gives to sqv, has `brainpoolp256 = 2028-02-01`. Debian builds sqv with Nettle, which has no
# Brainpool curves: the signature is reported as "not bound" with "No binding signature", never as an algorithm that is not supported, so the
# message sends the reader to the self-signatures of a key that has good ones. gpgv (apt of Debian 12) accepts the same key and signature.
# Expected: accepted until that day, or the reason. Needs Debian's apt, gpg, gpgv and unshare with user namespaces. Ends with 0 while the
# behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'GNUPGHOME="$folder/home" gpgconf --kill gpg-agent; rm -rf "$folder"' EXIT; cd "$folder"
mkdir -p lists/partial cache/archives/partial; touch status
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive trixie main" >sources.list
cat >apt.conf <<CONF
Dir::State "$folder"; Dir::State::lists "$folder/lists"; Dir::State::status "$folder/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
CONF
export APT_CONFIG=$folder/apt.conf
apt-get -qq update
apt-get -qq download apt sqv libc6 libgcc-s1 libgmp10 libhogweed6t64 libnettle8t64 libbz2-1.0
for package in *.deb; do dpkg-deb -x "$package" root; done
unset APT_CONFIG
for name in lib lib64; do [ -e "root/$name" ] || ln -s "usr/$name" "root/$name"; done
export GNUPGHOME=$folder/home; mkdir -m 700 home
echo "An index of packages" >root/index
verdict() { # a curve of gpg: the verdicts of gpgv and of sqv under apt's policy
    gpg -q --batch --passphrase "" --quick-gen-key "$1@example.org" "$1" sign never 2>/dev/null
    gpg --export "$1@example.org" >root/key.gpg
    gpg -q --batch --yes --digest-algo SHA512 -u "$1@example.org" --detach-sign -o root/index.sig root/index
    gpgv -q --keyring "$folder/root/key.gpg" root/index.sig root/index 2>/dev/null && echo -n "gpgv accepts, " || echo -n "gpgv refuses, "
    SEQUOIA_CRYPTO_POLICY=/usr/share/apt/default-sequoia.config unshare --user --map-root-user chroot root \
        /usr/bin/sqv --keyring /key.gpg --signature-file /index.sig /index >out 2>&1 && echo "sqv accepts" || echo "sqv refuses"
}
ls ./*.deb | grep -oE '(apt|sqv)_[^_]*' | tr '\n' ' '; echo
grep brainpoolp256 root/usr/share/apt/default-sequoia.config
nist=$(verdict nistp256); echo "NIST P-256: $nist"
brainpool=$(verdict brainpoolP256r1); echo "brainpoolP256r1: $brainpool"; grep -v '^$' out
[ "$nist" = "gpgv accepts, sqv accepts" ] && [ "$brainpool" = "gpgv accepts, sqv refuses" ] && grep -q "No binding signature" out
