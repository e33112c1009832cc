"""One file a change of the schema, in order. A released file is never edited."""
