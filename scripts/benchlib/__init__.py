"""What scripts/bench is made of: data, mounts, clocks, rows and the report."""
