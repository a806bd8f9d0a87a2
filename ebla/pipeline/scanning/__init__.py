"""A table as a DataFrame or as plain files, at one snapshot."""
