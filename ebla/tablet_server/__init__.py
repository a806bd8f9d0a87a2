"""The process of a tablet server: it leads tablets, reports them to the masters, and does as they ask."""
