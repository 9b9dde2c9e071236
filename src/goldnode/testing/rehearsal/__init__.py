"""A rehearsal of the lane of a vulnerability on nodes in containers: `goldnode cve rehearse`."""
