"""Single-flight for Django: a cache backend whose ``get_or_set`` computes a value once over all processes."""
