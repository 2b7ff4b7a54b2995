"""The packages that dispatch needs, pinned by hash; the package that it becomes."""
