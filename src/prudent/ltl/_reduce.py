def reduce_table(t, bdd): return t
