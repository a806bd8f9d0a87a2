"""What commands share: the place of the store, options, forms of rows, lines and tables for people, failures."""
