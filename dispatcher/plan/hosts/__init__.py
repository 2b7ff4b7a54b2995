"""From ``-H``, filters and allocations to hosts."""
