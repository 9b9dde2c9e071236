"""Ground of every other package: errors, files, YAML with line numbers, the site file, keys, documented environment variables."""
