"""Tables copied file by file, checked, and brought back."""
