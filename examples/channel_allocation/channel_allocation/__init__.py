"""Learnt allocation of scarce channels to control loops (DIRA, Redder, Ramaswamy and Quevedo, NECSYS 2019)."""
