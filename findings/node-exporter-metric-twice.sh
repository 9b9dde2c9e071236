#!/usr/bin/env bash
# prometheus-node-exporter 1.5.0 and promtool 2.42.0 (Debian 12): a metric that a text file has twice is dropped, and nothing but a log line shows it.
#
# Of two lines with one name and equal labels the first is exported. The scrape is answered with 200, and node_textfile_scrape_error, which is
# there for errors of these files, stays 0: an alert on it never fires. `promtool check metrics`, with which such files are checked before,
# prints nothing and ends with 0. So the second value of a script that writes a metric twice is lost. Expected: the error metric at 1, or a word
# of promtool. The error metric works otherwise: it is 1 for a file that cannot be read. node_exporter issue 2317 has the first half.
# Needs curl. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d)
exporter=
trap 'if [ -n "$exporter" ]; then kill "$exporter" 2>/dev/null || true; fi; rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download prometheus-node-exporter=1.5.0-1+b6 prometheus=2.42.0+ds-5+deb12u1
for package in *.deb; do dpkg-deb -x "$package" root; done
mkdir files
printf '# HELP gpu_faults Faults of GPUs.\n# TYPE gpu_faults gauge\ngpu_faults{gpu="0"} 0\ngpu_faults{gpu="0"} 7\n' >files/gpu.prom
root/usr/bin/promtool check metrics <files/gpu.prom && promtool=0 || promtool=$?
echo "promtool check metrics: exit $promtool"
port=19917
root/usr/bin/prometheus-node-exporter --web.listen-address=127.0.0.1:$port --collector.disable-defaults --collector.textfile \
    --collector.textfile.directory="$folder/files" >log 2>&1 &
exporter=$!
for _ in $(seq 50); do
    curl -s -o /dev/null "http://127.0.0.1:$port/" && break
    sleep 0.2
done
status=$(curl -s -o answer -w '%{http_code}' "http://127.0.0.1:$port/metrics")
echo "HTTP $status"
grep -E '^(gpu_faults|node_textfile_scrape_error)' answer
grep -o 'was collected before with the same name and label values' log
[ "$promtool" = 0 ] && [ "$status" = 200 ] && grep -qx 'gpu_faults{gpu="0"} 0' answer && ! grep -q 'gpu_faults{gpu="0"} 7' answer &&
    grep -qx 'node_textfile_scrape_error 0' answer
