"""The tablet server's mind: admission, commit, flush, recovery and reads of the tablets it holds. No network."""
