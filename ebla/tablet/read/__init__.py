"""What a reader sees at one moment: views, projections, rows by key, stretches, cached rows."""
