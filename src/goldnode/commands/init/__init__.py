"""Command `goldnode init` (`command`): `request` has its questions, and writes the site directory."""
