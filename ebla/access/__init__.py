"""Who may do what: users, tokens, rights on tables, certificates, and the log of what was asked and refused."""
