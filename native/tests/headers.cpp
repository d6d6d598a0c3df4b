// Nothing: it exists for the headers that are read with it.
