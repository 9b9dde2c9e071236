"""Command `goldnode schema` (`command`).

- `kinds`: the documents that have a schema, and their schemas
- `reference`: docs/reference/configuration.md, the page of all keys of files that people write
"""
