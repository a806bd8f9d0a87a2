"""What clients and servers say to each other: messages, and how values, rows and requests become bytes and back."""
