#!/usr/bin/env bash
# apt 2.6.2 (Debian 12): two stanzas with a space, or a comment, on the line between them are one stanza, and the first archive is gone without a word.
#
# sources.list(5) separates stanzas by empty lines. An editor that leaves a blank, or a person who writes `#` between two stanzas, makes one of them: each
# field is then given twice, and apt takes the last value, in preferences too (the first pin is gone). It reports nothing. python-debian 1.0.1, which programs
# that manage these files use, takes the line with a blank for a separator and sees both. apt 3.3.3 reads it as 2.6.2 does (tried).
# Expected: two stanzas, or a warning about fields that are there twice.
# Needs Debian's apt. Ends with 0 while both read it like this, 1 if one has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip -q install python-debian==1.0.1
mkdir -p lists/partial cache/archives/partial parts; touch status
cat >apt.conf <<CONF
Dir::State "$folder"; Dir::State::lists "$folder/lists"; Dir::State::status "$folder/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "$folder/parts"; Acquire::Languages "none";
CONF
apt-get --version | sed -n 1p
read_by() { # what separates the stanzas: the archives that apt and python-debian read
    printf 'Types: deb\nURIs: http://one.example/d\nSuites: s\nComponents: main\n%s\nTypes: deb\nURIs: http://two.example/d\nSuites: s\nComponents: main\n' "$1" \
        >parts/x.sources
    by_apt=$(APT_CONFIG=$folder/apt.conf apt-get --print-uris update 2>said | grep -o '//[a-z]*' | sort -u | tr -d '/' | tr '\n' ' ')
    by_python=$(venv/bin/python -c "
from debian.deb822 import Deb822
print(*(one['URIs'].split('/')[2].split('.')[0] for one in Deb822.iter_paragraphs(open('parts/x.sources'), use_apt_pkg=False)))")
    echo "between them '$1': apt reads $by_apt(and says: $(wc -c <said) bytes), python-debian $by_python"
}
{ read_by ''; read_by ' '; read_by '#'; } | tee result
grep -q "'': apt reads one two (and says: 0 bytes), python-debian one two" result
grep -q "' ': apt reads two (and says: 0 bytes), python-debian one two" result
grep -q "'#': apt reads two (and says: 0 bytes), python-debian" result
