"""Models that KenLM stores as hash tables (its type `probing`): their n-grams are found out from the hashes."""
