"""Keys of a site: each kind with its purpose, where it is trusted, its end and its mode; the authority of nodes."""
