"""Ansible inventories as goldnode reads them: hosts, classes, variables and cohorts."""
