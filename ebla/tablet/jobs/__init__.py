"""What jobs in this and other processes ask the owner of a store to do: bulk commits, compactions, restores."""
