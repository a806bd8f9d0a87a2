"""A store as a database of a Spark session: views that every query looks up anew."""
