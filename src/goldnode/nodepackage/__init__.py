"""The node program as a package of Debian and of RPM: contents, archives, and its place in the site's mirror."""
